from policy_fixtures import (  # noqa: F401
    act_directory,
    act_observations,
    load_tiny,
    tiny_directory,
)
