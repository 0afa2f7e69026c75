//! The protocol-pure client against the mock server and its faults.

mod ordering;
