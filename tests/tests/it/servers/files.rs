//! Files, on servers that support them.

use sandbox_agent_sdk::{Error, ServerKind};
use sdk_tests::within;

use super::{
    Row,
    peer::Peer,
    server::{Kind, Server, Setup},
};

/// The largest file that one request accepts.
const LIMIT: usize = 2 << 20;

/// One request accepts at most 2 MiB. A larger file is written in parts if the server can join them.
pub(super) async fn files_are_written_and_read_over_the_limit_of_one_request(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::any_agent()).await else { return };
    let peer = Peer::connect(&server, row.via).await;
    let client = peer.sdk().expect("only the SDK has files");
    let files = client.files();
    // An external server has files of its users, so the test uses a unique folder and deletes it.
    let folder = format!("sdk-suite-{}", std::process::id());
    let path = |name: &str| format!("{folder}/{name}");
    let small = within("writing", files.write(path("small"), "small")).await;
    if row.kind == Kind::Adapter {
        // It does not support files and responds with a plain 404.
        let error = small.expect_err("files are not supported");
        assert!(matches!(&error, Error::Http(http) if http.status == 404), "{error:?}");
        return;
    }
    small.expect("a small file is written");
    assert_eq!(within("reading", files.read_text(path("small"))).await.expect("its text"), "small");
    let (full, large) = (vec![b'f'; LIMIT], vec![b'l'; LIMIT + 1]);
    within("writing", files.write(path("full"), full.clone())).await.expect("it just fits");
    assert_eq!(within("reading", files.read(path("full"))).await.expect("its bytes"), full);
    let error =
        within("writing", files.write(path("large"), large.clone())).await.expect_err("it is too large");
    assert!(matches!(error, Error::PayloadTooLarge { .. }), "{error:?}");
    assert!(!within("looking", files.exists(path("large"))).await.expect("an answer"), "nothing was written");
    let parts = within("writing in parts", files.write_in_parts(path("large"), large.clone())).await;
    let kind = client.capabilities().expect("it is connected").server;
    if row.kind == Kind::Given && kind == ServerKind::Shared {
        // It may or may not be able to run commands.
        assert!(matches!(parts, Ok(_) | Err(Error::Unsupported { .. })), "{parts:?}");
    } else {
        parts.expect("a large file is written in parts");
        assert_eq!(within("reading", files.read(path("large"))).await.expect("its bytes"), large);
    }
    within("cleaning up", files.delete_all(&folder)).await.expect("the folder is deleted");
}
