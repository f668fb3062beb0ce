"""Running users' code in the users' Unix accounts: the launcher, which root runs, how it is installed and
called."""
