import torch

torch.set_num_threads(1)  # the networks are tiny: threads would only wait for each other
