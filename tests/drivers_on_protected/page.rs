//! The manual's page on unique indexes and schema validation, step by step.
