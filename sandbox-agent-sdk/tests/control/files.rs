//! Files.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use futures::{StreamExt, TryStreamExt, stream};
use mock_server::MockServer;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::{FsMove, Upload};
use tokio::io::AsyncReadExt;

use crate::support::{pattern, plane};

/// Names that are easily encoded wrongly.
const HOSTILE: [&str; 16] = [
    "with space",
    "plus+sign",
    "hash#mark",
    "question?mark",
    "percent%25",
    "50%",
    "amp&path=etc",
    "equals=sign",
    "semi;colon",
    "quote'\"",
    "back\\slash",
    "日本語 ü ñ 🦀",
    "e\u{301} is not \u{e9}",
    "new\nline\ttab",
    "trailing ",
    "..not-a-climb..",
];

#[tokio::test]
async fn a_file_is_written_read_and_deleted() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let bytes = pattern(100_000);
    let written = files.write("/a/b/data.bin", bytes.clone()).await.unwrap();
    assert_eq!((written.path.as_str(), written.bytes_written), ("/a/b/data.bin", 100_000));
    assert_eq!(fs::read(server.control().root().join("a/b/data.bin")).unwrap(), bytes);
    assert_eq!(files.read("/a/b/data.bin").await.unwrap(), bytes);
    files.write("/a/b/data.bin", "short").await.unwrap();
    assert_eq!(files.read_text("/a/b/data.bin").await.unwrap(), "short", "a write replaces");
    files.write("/empty", b"").await.unwrap();
    assert_eq!(files.read("/empty").await.unwrap(), "");
    assert_eq!(files.delete("/a/b/data.bin").await.unwrap().path, "/a/b/data.bin");
    assert!(!server.control().root().join("a/b/data.bin").exists());
}

#[tokio::test]
async fn directories_are_created_listed_and_deleted() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    for _ in 0..2 {
        assert_eq!(files.make_directory("/d/e/f").await.unwrap().path, "/d/e/f");
    }
    files.write("/d/file", "12345").await.unwrap();
    let mut entries = files.list("/d").await.unwrap();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let shown: Vec<_> = entries
        .iter()
        .map(|entry| (entry.name.as_str(), entry.path.as_str(), entry.is_directory()))
        .collect();
    assert_eq!(shown, [("e", "/d/e", true), ("file", "/d/file", false)]);
    assert_eq!(entries[1].size, 5);
    assert!(entries[1].modified.is_some());
    let home: Vec<_> = files.list("").await.unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(home, ["d"]);

    let full = files.delete("/d").await.unwrap_err();
    assert_eq!(full.problem().unwrap().short_kind(), "stream_error");
    assert!(files.exists("/d/file").await.unwrap(), "a directory with files is not deleted");
    files.delete_all("/d").await.unwrap();
    assert!(!files.exists("/d").await.unwrap());
}

#[tokio::test]
async fn a_path_is_described_with_links_followed() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    files.write("/d/file", "12345").await.unwrap();
    let stat = files.stat("/d/file").await.unwrap();
    assert_eq!((stat.size, stat.is_directory()), (5, false));
    assert!(files.stat("/d").await.unwrap().is_directory());
    assert!(files.stat("d").await.unwrap().is_directory(), "a relative path starts at home");
}

#[tokio::test]
async fn files_are_moved_and_replaced_only_on_request() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    files.write("/one #1", "1").await.unwrap();
    files.write("/two", "2").await.unwrap();
    let refused = files.rename(FsMove::new("/one #1", "/two")).await.unwrap_err();
    assert_eq!(refused.http().unwrap().status, 400);
    assert_eq!(files.read("/two").await.unwrap(), "2");
    let moved = files.rename(FsMove::new("/one #1", "/two").overwrite()).await.unwrap();
    assert_eq!((moved.from.as_str(), moved.to.as_str()), ("/one #1", "/two"));
    assert_eq!(files.read("/two").await.unwrap(), "1");
    files.rename(FsMove::new("/two", "/new/deep %/three")).await.unwrap();
    assert_eq!(files.read("/new/deep %/three").await.unwrap(), "1");
    assert!(!files.exists("/two").await.unwrap());
}

#[tokio::test]
async fn every_name_reaches_the_disk_unchanged() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let root = server.control().root().to_owned();
    for name in HOSTILE {
        let directory = format!("/{name}");
        let path = format!("/{name}/{name}");
        files.make_directory(&directory).await.unwrap();
        files.write(&path, name).await.unwrap();
        assert_eq!(fs::read_to_string(root.join(name).join(name)).unwrap(), name, "{name:?}");
        assert_eq!(files.read_text(&path).await.unwrap(), name);
        assert_eq!(files.stat(&path).await.unwrap().path, path);
        let listed = files.list(&directory).await.unwrap();
        assert_eq!((listed.len(), &listed[0].name, &listed[0].path), (1, &name.to_owned(), &path));
        files.rename(FsMove::new(&path, format!("{path}.moved"))).await.unwrap();
        files.delete(format!("{path}.moved")).await.unwrap();
        assert!(files.list(&directory).await.unwrap().is_empty());
    }
    let names: BTreeSet<_> = files.list("/").await.unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, HOSTILE.map(str::to_owned).into());
}

#[tokio::test]
async fn a_missing_path_is_not_found() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let missing = "/nope #1";
    for error in [
        files.read(missing).await.unwrap_err(),
        files.list(missing).await.unwrap_err(),
        files.stat(missing).await.unwrap_err(),
        files.delete(missing).await.unwrap_err(),
        files.rename(FsMove::new(missing, "/x")).await.unwrap_err(),
    ] {
        assert!(error.is_not_found(), "{error:?}");
        let problem = error.problem().unwrap();
        assert_eq!(problem.detail.as_deref(), Some("invalid request: path not found: /nope #1"));
    }
    files.make_directory("/d").await.unwrap();
    let wrong_kind = files.read("/d").await.unwrap_err();
    assert!(!wrong_kind.is_not_found());
    assert_eq!(wrong_kind.problem().unwrap().short_kind(), "invalid_request");
}

#[tokio::test]
async fn parent_paths_are_rejected_by_the_server() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    for path in ["../../etc/passwd", "a/../../b", "nul\0byte"] {
        for error in [files.read(path).await.unwrap_err(), files.write(path, "x").await.unwrap_err()] {
            assert_eq!(error.problem().unwrap().short_kind(), "invalid_request", "{path:?}");
        }
    }
    assert!(files.list("").await.unwrap().is_empty());
}

#[tokio::test]
async fn invalid_utf8_is_a_decode_error_with_the_bytes() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    files.write("/latin", b"gr\xfcn").await.unwrap();
    let error = files.read_text("/latin").await.unwrap_err();
    let Error::Decode { raw, .. } = &error else { panic!("{error:?}") };
    assert_eq!(raw, "gr\u{fffd}n");
    assert_eq!(files.read("/latin").await.unwrap(), &b"gr\xfcn"[..]);
}

#[tokio::test]
async fn a_file_is_read_as_a_stream_and_as_a_reader() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let bytes = pattern(1_500_001);
    files.write("/big", bytes.clone()).await.unwrap();

    let stream = files.open("/big").await.unwrap();
    assert_eq!(stream.size(), Some(1_500_001));
    let pieces: Vec<_> = stream.try_collect().await.unwrap();
    assert!(pieces.len() > 1, "it arrives in chunks");
    assert_eq!(pieces.concat(), bytes);

    let mut reader = files.open("/big").await.unwrap();
    let mut start = [0; 7];
    reader.read_exact(&mut start).await.unwrap();
    let middle = reader.next().await.unwrap().unwrap();
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).await.unwrap();
    assert_eq!([&start[..], &middle, &rest].concat(), bytes, "stream and reader can be mixed");

    let mut reader = files.open("/big").await.unwrap();
    reader.read_exact(&mut start).await.unwrap();
    assert_eq!(reader.into_bytes(usize::MAX).await.unwrap(), &bytes[7..]);
    let limited = files.open("/big").await.unwrap().into_bytes(1000).await.unwrap_err();
    assert!(matches!(limited, Error::MessageTooLarge { limit: 1000, .. }));
}

#[tokio::test]
async fn streams_and_readers_are_uploaded() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let bytes = pattern(300_000);
    let pieces: Vec<_> = bytes.chunks(999).map(|piece| Ok::<_, io::Error>(piece.to_vec())).collect();
    let written = files.write("/streamed", Upload::stream(stream::iter(pieces))).await.unwrap();
    assert_eq!(written.bytes_written, 300_000);
    assert_eq!(files.read("/streamed").await.unwrap(), bytes);
    let request = server.requests_to("PUT", "/v1/fs/file").pop().unwrap();
    assert_eq!(request.header("transfer-encoding"), Some("chunked"));

    let local = server.control().root().join("streamed");
    let reader = tokio::fs::File::open(local).await.unwrap();
    files.write("/copy", Upload::reader(reader).length(300_000)).await.unwrap();
    assert_eq!(files.read("/copy").await.unwrap(), bytes);
    let request = server.requests_to("PUT", "/v1/fs/file").pop().unwrap();
    assert_eq!(request.header("content-length"), Some("300000"));
    assert_eq!(request.header("content-type"), Some("application/octet-stream"));

    let from_server = files.open("/copy").await.unwrap();
    files.write("/third", Upload::stream(from_server)).await.unwrap();
    assert_eq!(files.read("/third").await.unwrap(), bytes, "a download can be uploaded");
}

#[tokio::test]
async fn a_failing_stream_leaves_the_file_unchanged() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    files.write("/kept", "old").await.unwrap();
    let broken = || stream::iter([Ok("new"), Err(io::Error::other("disk failed"))]);
    let short = || stream::iter([Ok::<_, io::Error>("new")]);
    let uploads = [
        (Upload::stream(broken()), "disk failed"),
        (Upload::stream(broken()).length(100), "disk failed"),
        (Upload::stream(short()).length(100), "the stream is shorter than its declared length"),
        (Upload::stream(short()).length(2), "the stream is longer than its declared length"),
    ];
    for (upload, reason) in uploads {
        let error = files.write("/kept", upload).await.unwrap_err();
        let Error::Local { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.to_string(), reason);
        assert_eq!(files.read("/kept").await.unwrap(), "old");
    }
}

#[test]
fn handles_are_send_sync_and_static() {
    fn anywhere<T: Send + Sync + Clone + 'static>() {}
    fn sendable<T: Send + 'static>(_: &T) {}
    anywhere::<sandbox_agent_sdk::control::ControlPlane>();
    anywhere::<sandbox_agent_sdk::control::Files>();
    anywhere::<sandbox_agent_sdk::control::Agents>();
    anywhere::<sandbox_agent_sdk::control::Configuration>();
    anywhere::<sandbox_agent_sdk::control::HealthCheck>();
    let plane = sandbox_agent_sdk::control::ControlPlane::new("http://127.0.0.1:1").unwrap();
    sendable(&plane.files().open("/x"));
    sendable(&plane.files().write("/x", "y"));
    sendable(&plane.agents().install("mock"));
    sendable(&plane.health().wait(sandbox_agent_sdk::control::HealthWait::default()));
    fn reader<T: Send + Unpin + 'static>() {}
    reader::<sandbox_agent_sdk::control::FileReader>();
}
