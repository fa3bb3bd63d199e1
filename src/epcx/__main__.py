from epcx.cli import main

main()
