from policy_fixtures import (  # noqa: F401
    act_directory,
    load_tiny,
    make_observations,
    no_network,
    tiny_directory,
    tiny_policy,
)
