//! The uniqueness protocol without servers: [`keyward::reservation`] under a model checker and in a simulation, and the register of
//! Keywards under a model checker.

#![allow(clippy::unwrap_used, reason = "what can't be unwrapped fails its test")]

mod fleet_model;
mod list_model;
mod model;
mod simulation;
mod under_test;
