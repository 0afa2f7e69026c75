//! Uploads of whole trees.

use std::{fs, os::unix::fs::PermissionsExt};

use reqwest::Method;
use serde_json::json;
use tar::{Builder, EntryType, Header};

use crate::server::{Reply, Server, TAR};

async fn upload(server: &Server, path: &str, archive: Vec<u8>) -> Reply {
    server.send(Method::POST, &format!("/v1/fs/upload-batch?path={path}"), TAR, archive).await
}

/// Adds an entry with any name, even one that the library rejects.
fn add(builder: &mut Builder<Vec<u8>>, name: &str, kind: EntryType, link: &str, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o4755);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

fn archive(entries: &[(&str, EntryType, &str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, kind, link, content) in entries {
        add(&mut builder, name, *kind, link, content);
    }
    builder.into_inner().unwrap()
}

#[tokio::test]
async fn an_archive_is_unpacked_in_order() {
    let server = Server::start().await;
    let tar = archive(&[
        ("./", EntryType::Directory, "", b""),
        ("one", EntryType::Regular, "", b"1"),
        ("sub/", EntryType::Directory, "", b""),
        ("./sub/two", EntryType::Regular, "", b"22"),
    ]);
    let uploaded = upload(&server, "/up", tar).await;
    let expected = json!({ "paths": ["/up/one", "/up/sub", "/up/sub/two"], "truncated": false });
    assert_eq!(uploaded.json(200), expected);
    assert_eq!(fs::read(server.on_disk("up/sub/two")).unwrap(), b"22");
    let mode = fs::metadata(server.on_disk("up/one")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "executable, without setuid");
}

#[tokio::test]
async fn without_a_path_the_archive_is_unpacked_into_the_root() {
    let server = Server::start().await;
    let tar = archive(&[("one", EntryType::Regular, "", b"1")]);
    let uploaded = server.send(Method::POST, "/v1/fs/upload-batch", "application/x-tar; x=y", tar).await;
    assert_eq!(uploaded.json(200)["paths"], json!(["/one"]));
    let empty = upload(&server, "/empty", Vec::new()).await;
    assert_eq!(empty.json(200), json!({ "paths": [], "truncated": false }));
}

#[tokio::test]
async fn only_the_first_paths_are_listed() {
    let server = Server::start().await;
    let names: Vec<String> = (0..1030).map(|number| format!("file-{number}")).collect();
    let entries: Vec<_> =
        names.iter().map(|name| (name.as_str(), EntryType::Regular, "", &b""[..])).collect();
    let uploaded = upload(&server, "/many", archive(&entries)).await.json(200);
    assert_eq!(uploaded["paths"].as_array().unwrap().len(), 1024);
    assert_eq!(uploaded["truncated"], true);
    assert_eq!(fs::read_dir(server.on_disk("many")).unwrap().count(), 1030);
}

#[tokio::test]
async fn long_names_are_unpacked() {
    let server = Server::start().await;
    let name = format!("{}/{}", "d".repeat(120), "f".repeat(120));
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o644);
    builder.append_data(&mut header, &name, &b"x"[..]).unwrap();
    let uploaded = upload(&server, "/", builder.into_inner().unwrap()).await;
    assert_eq!(uploaded.json(200)["paths"], json!([format!("/{name}")]));
}

#[tokio::test]
async fn a_body_that_is_not_an_archive_is_rejected() {
    let server = Server::start().await;
    let tar = archive(&[("one", EntryType::Regular, "", b"1")]);
    let target = "/v1/fs/upload-batch?path=/up";
    let other = server.send(Method::POST, target, "application/octet-stream", tar.clone()).await;
    assert_eq!(
        other.problem(400, "invalid_request"),
        "invalid request: content-type must be application/x-tar"
    );
    server.post(target).await.problem(400, "invalid_request");
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03 and so on".to_vec();
    let detail = upload(&server, "/up", gzip).await.problem(502, "stream_error");
    assert_eq!(detail, "stream error: failed to read entire block");
    upload(&server, "/up", tar[..513].to_vec()).await.problem(502, "stream_error");
}

#[tokio::test]
async fn entries_with_parent_or_absolute_paths_are_rejected() {
    let server = Server::start().await;
    for name in ["../evil", "a/../../evil", "/etc/evil", ".."] {
        let tar =
            archive(&[("before", EntryType::Regular, "", b"kept"), (name, EntryType::Regular, "", b"evil")]);
        let refused = upload(&server, "/up", tar).await;
        let detail = refused.problem(400, "invalid_request");
        assert_eq!(detail, format!("invalid request: invalid relative path: {name}"));
    }
    assert_eq!(fs::read(server.on_disk("up/before")).unwrap(), b"kept", "earlier entries remain");
    assert_eq!(fs::read_dir(server.control.root()).unwrap().count(), 1);
}

#[tokio::test]
async fn links_in_an_archive_cannot_leave_the_root() {
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("root")).unwrap();
    let builder = mock_server::ControlPlane::builder().root(outside.path().join("root"));
    let server = Server::with(builder).await;
    let climbing =
        archive(&[("out", EntryType::Symlink, "../..", b""), ("out/evil", EntryType::Regular, "", b"evil")]);
    upload(&server, "/up", climbing).await.problem(400, "invalid_request");
    let absolute = archive(&[("abs", EntryType::Symlink, "/etc", b"")]);
    upload(&server, "/up", absolute).await.problem(400, "invalid_request");
    let hard = archive(&[("hard", EntryType::Link, "../../secret", b"")]);
    upload(&server, "/up", hard).await.problem(400, "invalid_request");
    let device = archive(&[("dev", EntryType::Char, "", b"")]);
    upload(&server, "/up", device).await.problem(400, "invalid_request");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn links_inside_the_root_are_created() {
    let server = Server::start().await;
    let tar = archive(&[
        ("file", EntryType::Regular, "", b"text"),
        ("soft", EntryType::Symlink, "file", b""),
        ("hard", EntryType::Link, "file", b""),
    ]);
    for _ in 0..2 {
        upload(&server, "/up", tar.clone()).await.json(200);
    }
    assert_eq!(server.get("/v1/fs/file?path=/up/soft").await.body, "text");
    assert_eq!(server.get("/v1/fs/file?path=/up/hard").await.body, "text");
}
