//! Files, where a server has any.

use sandbox_agent_sdk::Error;
use sdk_tests::within;

use super::{
    Row,
    peer::Peer,
    server::{Kind, Server, Setup},
};

/// One request takes 2 MiB at most, and a larger file goes in parts where the server can put them together.
pub(super) async fn files_are_written_and_read_over_the_limit_of_one_request(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::default()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let files = peer.sdk().expect("only the SDK has files").files();
    let large = vec![b'x'; (2 << 20) + 1];
    let small = within("writing", files.write("notes/small.txt", "small")).await;
    if row.kind == Kind::Adapter {
        // It has no files, and says so with a bare status.
        let error = small.expect_err("there is nothing to write to");
        assert!(matches!(&error, Error::Http(http) if http.status == 404), "{error:?}");
        return;
    }
    small.expect("a small file is written");
    assert_eq!(within("reading", files.read_text("notes/small.txt")).await.expect("its text"), "small");
    let error = within("writing", files.write("large", large.clone())).await.expect_err("it is too large");
    assert!(matches!(error, Error::PayloadTooLarge { .. }), "{error:?}");
    let parts = within("writing in parts", files.write_in_parts("large", large.clone())).await;
    if row.kind == Kind::MockRpc {
        return assert!(matches!(parts, Err(Error::Unsupported { .. })), "{parts:?}");
    }
    parts.expect("a large file is written in parts");
    assert_eq!(within("reading", files.read("large")).await.expect("its bytes"), large);
}
