"""The REST API from Python, for the CLI, tests and scripts: `client.OakumClient` has a method for each call.

ClientError
├── NotConfigured         no address was given and none could be found
├── ServiceUnreachable    nothing answers at the address
├── ApiError              the service refused the call, with a problem document (RFC 9457)
└── UnexpectedAnswer      something answers that is not an Oakum service
"""
