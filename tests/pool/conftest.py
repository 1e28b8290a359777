from policy_fixtures import (  # noqa: F401
    act_directory,
    load_tiny,
    make_observations,
    tiny_directory,
)
