//! Integration tests over real sockets.

mod acp;
