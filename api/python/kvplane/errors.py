# SPDX-License-Identifier: Apache-2.0
"""What is raised by all parts of the package."""


class Error(Exception):
    """Anything that this package raises of itself."""
