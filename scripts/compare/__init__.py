# SPDX-License-Identifier: Apache-2.0
"""The modules of scripts/compare.py: one for each of its commands, and those that they share."""
