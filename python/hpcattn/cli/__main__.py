# SPDX-License-Identifier: Apache-2.0
"""`python -m hpcattn.cli`: the same as the script `hpcattn`."""

from hpcattn.cli import main

main()
