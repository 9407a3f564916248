//! A throwaway sharded MongoDB cluster for tests and the demo.
