//! The mock server over real sockets.

mod client;
mod rpc;
