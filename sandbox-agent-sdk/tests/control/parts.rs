//! Files that exceed the server's limit for one request.

use std::fs;
use std::io;

use bytes::Bytes;
use futures::stream;
use mock_server::MockServer;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::{Files, Upload};

use crate::support::{pattern, plane};

const MIB: usize = 1024 * 1024;

/// A name that needs quoting in a shell and encoding in a URL.
const DIRECTORY: &str = "/it's $HOME `id` #1; \"x\" *.parts-1";

async fn names(files: &Files, directory: &str) -> Vec<String> {
    files.list(directory).await.unwrap().into_iter().map(|entry| entry.name).collect()
}

#[tokio::test]
async fn a_file_over_the_limit_is_written_in_parts() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let bytes = pattern(7 * MIB + 3);
    let pieces: Vec<_> = bytes.chunks(300_001).map(|piece| Ok::<_, io::Error>(piece.to_vec())).collect();
    let uploads = [
        Upload::from(bytes.clone()),
        Upload::stream(stream::iter(pieces)),
        Upload::reader(io::Cursor::new(bytes.clone())).length(bytes.len() as u64),
    ];
    for upload in uploads {
        let path = format!("{DIRECTORY}/-big file");
        files.write(&path, "old").await.unwrap();
        let written = files.write_in_parts(&path, upload).await.unwrap();
        assert_eq!((written.path.as_str(), written.bytes_written), (path.as_str(), bytes.len() as u64));
        let on_disk = server.control().root().join(&path[1..]);
        assert!(fs::read(on_disk).unwrap() == bytes);
        assert_eq!(names(&files, DIRECTORY).await, ["-big file"], "the parts are removed");
    }
    let written = files.write_in_parts("relative", bytes.clone()).await.unwrap();
    assert_eq!(written.path, "/relative");
    assert!(files.read("/relative").await.unwrap() == bytes);
}

#[tokio::test]
async fn a_small_file_is_written_in_one_request() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    for size in [0, 1, MIB] {
        let bytes = pattern(size);
        let stream = stream::iter([Ok::<_, io::Error>(Bytes::from(bytes.clone()))]);
        let written = files.write_in_parts("/small", Upload::stream(stream)).await.unwrap();
        assert_eq!(written.bytes_written, size as u64);
        assert_eq!(files.read("/small").await.unwrap(), bytes);
    }
    assert_eq!(server.requests_to("PUT", "/v1/fs/file").len(), 3);
    assert!(server.requests_to("GET", "/v1/processes/config").is_empty());
}

#[tokio::test]
async fn a_server_without_commands_is_reported_before_anything_is_written() {
    let server = MockServer::builder().processes(false).start().await;
    let files = plane(&server).files();
    let error = files.write_in_parts("/big", vec![0; 3 * MIB]).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    assert!(names(&files, "/").await.is_empty());
    assert!(server.requests_to("PUT", "/v1/fs/file").is_empty());
}

#[tokio::test]
async fn a_failed_write_in_parts_leaves_the_file_unchanged() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    files.write("/d/file", "old").await.unwrap();
    let piece = Bytes::from(vec![0; MIB]);
    let torn = (0..4).map(move |_| Ok(piece.clone())).chain([Err(io::Error::other("torn"))]);
    let error = files.write_in_parts("/d/file", Upload::stream(stream::iter(torn))).await.unwrap_err();
    let Error::Local { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.to_string(), "torn");
    assert_eq!(files.read("/d/file").await.unwrap(), "old");
    assert_eq!(names(&files, "/d").await, ["file"]);

    let error = files.write_in_parts("/d", vec![0; 3 * MIB]).await.unwrap_err();
    let answer = error.http().unwrap();
    assert!(answer.status == 200 && answer.body.contains("is a directory"), "{error:?}");
    assert!(error.to_string().contains("is a directory") && !error.maybe_executed());
    assert_eq!(names(&files, "/").await, ["d"]);
    assert_eq!(names(&files, "/d").await, ["file"]);
}
