"""A Python client of the REST API, for the CLI, tests and scripts: `oakum_client.OakumClient`.

ClientError
├── NotConfigured         no address was given and none could be found
├── ServiceUnreachable    nothing answers at the address
├── ApiError              the service refused the call, with a problem document (RFC 9457)
└── UnexpectedAnswer      something answers that is not an Oakum service
"""
