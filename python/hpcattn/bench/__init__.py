# SPDX-License-Identifier: Apache-2.0
"""Measuring hpcattn beside torch on this machine: what `hpcattn bench` runs."""
