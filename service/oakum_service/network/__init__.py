"""The service's edge to the network: connections, its certificate, and the addresses that webhooks may reach."""
