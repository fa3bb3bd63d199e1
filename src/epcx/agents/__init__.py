"""What an agent is: a policy and a critic, in three architectures with one signature."""
