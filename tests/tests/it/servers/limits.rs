//! Prompts that are too large.

use super::{
    Row,
    peer::Peer,
    server::{Server, Setup},
};

/// A size above the limit of the released servers that is still read quickly.
const ENOUGH: usize = 3 << 20;

pub(super) async fn a_prompt_over_the_servers_limit_is_rejected_as_too_large(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let session = peer.session().await;
    let limit = server.body_limit();
    let failed = peer.prompt(&session, &"x".repeat(limit + 1)).await;
    let failure = failed.failure();
    assert!(failure.is_too_large(), "{failure:?}");
    assert!(!failure.maybe_executed() && failed.texts.is_empty());
    // The session remains usable, and a prompt within the limit is accepted.
    let padding = " ".repeat((limit - 4096).min(ENOUGH));
    let reply = peer.prompt(&session, &format!("say it fits;{padding}")).await;
    server.said(&reply, &["it fits"]);
}
