"""Which of the service's variables reach users' code."""

from __future__ import annotations

from cells import each
from oakum_worker.user_environment import passed_on, withheld

SECRET = (
    "OAKUM_DATABASE_URL",
    "OAKUM_TOKEN",
    "OAKUM_ANYTHING",
    "PGPASSWORD",
    "PGPASSFILE",
    "DATABASE_URL",
    "DB_PWD",
    "SLURM_JWT",
    "HF_TOKEN",
    "GITHUB_TOKEN",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_CLIENT_SECRET",
    "MYSQL_PASSWORD",
    "npm_config__auth",
    "SENTRY_DSN",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "SMTP_PASS",
    "RABBITMQ_DEFAULT_PASS",
    "MAIL_PWD",
    "LDAP_BINDPW",
    "GITHUB_PAT",
    "OPENAI_KEY",
    "BORG_PASSCOMMAND",
    "AZURE_STORAGE_CONNECTION_STRING",
)
HARMLESS = (
    "PATH",
    "HOME",
    "LANG",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_SOCKET_IFNAME",
    "SLURM_CONF",
    "OMP_NUM_THREADS",
    "HF_HOME",
    "TOKENIZERS_PARALLELISM",
    "XAUTHORITY",
    "GIT_AUTHOR_NAME",
    "KEYBOARD",
    "KEYTIMEOUT",
    "PWD",
    "OLDPWD",
    "BYPASS",
    "COMPASS_HOME",
    "CMAKE_PREFIX_PATH",
    "CXX",
    "PGI",
    "OAKUM_FUSED_LOOPS",
)


@each("name", SECRET)
def test_a_secret_stays_with_the_service(name: str) -> None:
    assert withheld([name]) == [name]
    assert passed_on({name: "x", "PATH": "/bin"}) == {"PATH": "/bin"}


@each("name", HARMLESS)
def test_what_programs_need_is_passed_on(name: str) -> None:
    assert passed_on({name: "x"}) == {name: "x"}
