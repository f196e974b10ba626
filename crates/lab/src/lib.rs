//! The lab: seeded simulation of the shipped engine, trace replay and policy comparison.
