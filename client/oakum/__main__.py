"""`python -m oakum` is the `oakum` command."""

from oakum_client.cli import main

if __name__ == "__main__":
    main()
