# SPDX-License-Identifier: Apache-2.0
"""Attention of other libraries, computed by hpcattn."""
