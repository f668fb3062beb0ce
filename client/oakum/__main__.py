"""`python -m oakum_service` is the `oakum` command."""

from oakum_service.cli import main

if __name__ == "__main__":
    main()
