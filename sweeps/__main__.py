"""`python -m sweeps VERB`: what can be done with a study under `runs/`."""

import sys

if __name__ == "__main__":
    from sweeps.verbs import main

    sys.exit(main())
