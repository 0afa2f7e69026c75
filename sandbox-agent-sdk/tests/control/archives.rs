//! Archives that the server unpacks.

use std::fs;
use std::io;

use futures::stream;
use mock_server::MockServer;
use sandbox_agent_sdk::control::Upload;
use tar::{Builder, Header};

use crate::support::{pattern, plane};

fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, content) in entries {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

#[tokio::test]
async fn an_archive_is_unpacked_from_bytes_and_from_a_stream() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let data = pattern(70_000);
    let tar = archive(&[("one", b"1"), ("sub/two ü", &data)]);
    let pieces: Vec<_> = tar.chunks(1000).map(|piece| Ok::<_, io::Error>(piece.to_vec())).collect();
    let uploads = [
        ("/from bytes", Upload::from(tar.clone())),
        ("/from stream", Upload::stream(stream::iter(pieces))),
        ("/from reader", Upload::reader(io::Cursor::new(tar.clone())).length(tar.len() as u64)),
    ];
    for (directory, upload) in uploads {
        let uploaded = files.upload_tar(directory, upload).await.unwrap();
        let expected = [format!("{directory}/one"), format!("{directory}/sub/two ü")];
        assert_eq!((uploaded.paths.as_slice(), uploaded.truncated), (&expected[..], false));
        let root = server.control().root().join(&directory[1..]);
        assert_eq!(fs::read(root.join("one")).unwrap(), b"1");
        assert_eq!(fs::read(root.join("sub/two ü")).unwrap(), data);
    }
    let uploaded = files.upload_tar("", tar).await.unwrap();
    assert_eq!(uploaded.paths[0], "/one", "an empty path is the home directory");
}

#[tokio::test]
async fn an_unreadable_archive_is_a_problem() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03 and so on";
    let error = files.upload_tar("/up", gzip).await.unwrap_err();
    assert_eq!(error.problem().unwrap().short_kind(), "stream_error");
    assert!(error.maybe_executed(), "entries before the failure remain");
    let climbing = {
        let mut tar = archive(&[("..-evil", b"x")]);
        tar[2] = b'/';
        let sum: u32 = tar[..512].iter().enumerate().fold(0, |sum, (index, byte)| {
            sum + u32::from(if (148..156).contains(&index) { b' ' } else { *byte })
        });
        tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar
    };
    let error = files.upload_tar("/up", climbing).await.unwrap_err();
    assert_eq!(error.problem().unwrap().short_kind(), "invalid_request");
    assert!(!server.control().root().join("evil").exists());
}

#[tokio::test]
async fn an_archive_whose_source_fails_is_a_local_error() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let broken = stream::iter([Ok(vec![0; 100]), Err(io::Error::other("torn"))]);
    let error = files.upload_tar("/up", Upload::stream(broken)).await.unwrap_err();
    assert!(matches!(error, sandbox_agent_sdk::Error::Local { .. }), "{error:?}");
}
