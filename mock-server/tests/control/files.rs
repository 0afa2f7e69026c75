//! Files and directories, without attempts to leave the root.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use mock_server::ControlPlane;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::server::{JSON, Reply, Server};

async fn rename(server: &Server, body: Value) -> Reply {
    server.send(Method::POST, "/v1/fs/move", JSON, body.to_string()).await
}

#[tokio::test]
async fn a_file_is_written_read_and_described() {
    let server = Server::start().await;
    let written = server.put("/a/b.txt", "hello").await;
    assert_eq!(written.json(200), json!({ "path": "/a/b.txt", "bytesWritten": 5 }));
    assert_eq!(fs::read(server.on_disk("a/b.txt")).unwrap(), b"hello");

    let read = server.get("/v1/fs/file?path=/a/b.txt").await;
    assert_eq!((read.status.as_u16(), read.content_type.as_str()), (200, "application/octet-stream"));
    assert_eq!(read.body, "hello");
    let head = server.request(Method::HEAD, "/v1/fs/file?path=/a/b.txt").send().await.unwrap();
    assert_eq!(head.headers()["content-length"], "5");

    let stat = server.get("/v1/fs/stat?path=/a/b.txt").await.json(200);
    assert_eq!(
        (&stat["path"], &stat["entryType"], &stat["size"]),
        (&json!("/a/b.txt"), &json!("file"), &json!(5))
    );
    let modified = stat["modified"].as_str().unwrap();
    assert!(modified.len() == 35 && modified.ends_with("+00:00"), "{modified}");
    let directory = server.get("/v1/fs/stat?path=/a").await.json(200);
    assert_eq!(directory["entryType"], "directory");
}

#[tokio::test]
async fn relative_paths_and_the_empty_path_start_at_the_root() {
    let server = Server::start().await;
    let written = server.put("rel/x.txt", "in%20home").await;
    assert_eq!(written.json(200)["path"], "/rel/x.txt");
    assert_eq!(server.get("/v1/fs/stat?path=").await.json(200)["path"], "/");
    let entries = server.get("/v1/fs/entries").await.json(200);
    assert_eq!((entries[0]["name"].as_str(), entries[0]["path"].as_str()), (Some("rel"), Some("/rel")));
    assert_eq!(server.get("/v1/fs/entries?path=").await.json(200), entries);
}

#[tokio::test]
async fn a_directory_lists_its_entries_without_following_links() {
    let server = Server::start().await;
    assert_eq!(server.get("/v1/fs/entries").await.body, "[]");
    fs::create_dir_all(server.on_disk("d/sub")).unwrap();
    fs::write(server.on_disk("d/file"), "123").unwrap();
    std::os::unix::fs::symlink("sub", server.on_disk("d/dirlink")).unwrap();
    std::os::unix::fs::symlink("nowhere", server.on_disk("d/dangling")).unwrap();
    let listed = server.get("/v1/fs/entries?path=/d").await.json(200);
    let mut entries: Vec<_> = listed.as_array().unwrap().iter().collect();
    entries.sort_by_key(|entry| entry["name"].as_str());
    let summary: Vec<_> = entries
        .iter()
        .map(|entry| (entry["path"].as_str().unwrap(), entry["entryType"].as_str().unwrap()))
        .collect();
    let expected =
        [("/d/dangling", "file"), ("/d/dirlink", "file"), ("/d/file", "file"), ("/d/sub", "directory")];
    assert_eq!(summary, expected);
    assert_eq!(entries[2]["size"], 3);
    let linked = server.get("/v1/fs/stat?path=/d/dirlink").await.json(200);
    assert_eq!(linked["entryType"], "directory", "stat follows links");
}

#[tokio::test]
async fn paths_of_the_wrong_kind_and_missing_ones_are_bad_requests() {
    let server = Server::start().await;
    server.put("/a/b.txt", "x").await.json(200);
    let table = [
        ("/v1/fs/entries?path=/a/b.txt", "path is not a directory: /a/b.txt"),
        ("/v1/fs/entries?path=/nope", "path not found: /nope"),
        ("/v1/fs/file?path=/nope", "path not found: /nope"),
        ("/v1/fs/file?path=/a", "path is not a file: /a"),
        ("/v1/fs/stat?path=/nope", "path not found: /nope"),
    ];
    for (target, message) in table {
        let detail = server.get(target).await.problem(400, "invalid_request");
        assert_eq!(detail, format!("invalid request: {message}"));
    }
    let missing = server.get("/v1/fs/file").await;
    assert_eq!(missing.text(400), "Failed to deserialize query string: missing field `path`");
}

#[tokio::test]
async fn reading_a_named_pipe_does_not_block_the_server() {
    let server = Server::start().await;
    nix::unistd::mkfifo(&server.on_disk("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let read = server.get("/v1/fs/file?path=/pipe").await;
    assert_eq!(read.problem(400, "invalid_request"), "invalid request: path is not a file: /pipe");
    server.put("/pipe", "x").await.problem(400, "invalid_request");
}

#[tokio::test]
async fn directories_are_created_with_their_parents_and_may_exist() {
    let server = Server::start().await;
    for _ in 0..2 {
        let made = server.post("/v1/fs/mkdir?path=/d1/d2").await;
        assert_eq!(made.json(200), json!({ "path": "/d1/d2" }));
    }
    server.put("/file", "x").await.json(200);
    let detail = server.post("/v1/fs/mkdir?path=/file").await.problem(502, "stream_error");
    assert_eq!(detail, "stream error: File exists (os error 17)");
    server.put("/d1", "x").await.problem(502, "stream_error");
    assert!(server.on_disk("d1/d2").is_dir());
}

#[tokio::test]
async fn a_move_renames_and_replaces_only_on_request() {
    let server = Server::start().await;
    server.put("/a", "one").await.json(200);
    let moved = rename(&server, json!({ "from": "/a", "to": "/new/c" })).await;
    assert_eq!(moved.json(200), json!({ "from": "/a", "to": "/new/c" }));
    server.put("/a", "two").await.json(200);
    let refused = rename(&server, json!({ "from": "/a", "to": "/new/c" })).await;
    let detail = refused.problem(400, "invalid_request");
    assert_eq!(detail, "invalid request: destination already exists: /new/c");
    let replaced = rename(&server, json!({ "from": "/a", "to": "/new/c", "overwrite": true })).await;
    replaced.json(200);
    assert_eq!(fs::read(server.on_disk("new/c")).unwrap(), b"two");
    assert!(!server.on_disk("a").exists());

    let gone = rename(&server, json!({ "from": "/gone", "to": "/new/c", "overwrite": true })).await;
    assert_eq!(gone.problem(400, "invalid_request"), "invalid request: path not found: /gone");
    assert_eq!(fs::read(server.on_disk("new/c")).unwrap(), b"two", "a failed move preserves the target");
    rename(&server, json!({ "from": "/new/c" })).await.text(422);
    assert_eq!(fs::read_dir(server.on_disk("new")).unwrap().count(), 1, "no temporary entry remains");
}

#[tokio::test]
async fn a_move_between_a_directory_and_its_own_contents_changes_nothing() {
    let server = Server::start().await;
    server.put("/outer/inner/file", "kept").await.json(200);
    for (from, to) in [("/outer/inner", "/outer"), ("/outer", "/outer/inner"), ("/outer", "/outer/x/y")] {
        let moved = rename(&server, json!({ "from": from, "to": to, "overwrite": true })).await;
        assert!(moved.status.is_client_error() || moved.status.is_server_error(), "{from} to {to}");
        assert_eq!(fs::read(server.on_disk("outer/inner/file")).unwrap(), b"kept");
    }
    rename(&server, json!({ "from": "/outer", "to": "/outer", "overwrite": true })).await.json(200);
    server.put("/other/file", "new").await.json(200);
    rename(&server, json!({ "from": "/other", "to": "/outer", "overwrite": true })).await.json(200);
    assert_eq!(fs::read(server.on_disk("outer/file")).unwrap(), b"new");
    assert_eq!(fs::read_dir(server.control.root()).unwrap().count(), 1, "no temporary entry remains");
}

#[tokio::test]
async fn deleting_a_directory_with_contents_needs_an_option() {
    let server = Server::start().await;
    server.put("/d1/file", "x").await.json(200);
    let full = server.delete("/v1/fs/entry?path=/d1").await;
    let detail = full.problem(502, "stream_error");
    assert_eq!(detail, "stream error: Directory not empty (os error 39)");
    server.delete("/v1/fs/entry?path=/d1&recursive=yes").await.text(400);
    let deleted = server.delete("/v1/fs/entry?path=/d1&recursive=true").await;
    assert_eq!(deleted.json(200), json!({ "path": "/d1" }));
    let again = server.delete("/v1/fs/entry?path=/d1").await;
    assert_eq!(again.problem(400, "invalid_request"), "invalid request: path not found: /d1");
}

#[tokio::test]
async fn the_root_itself_can_neither_be_deleted_nor_moved() {
    let server = Server::start().await;
    server.put("/file", "x").await.json(200);
    for path in ["", "/", ".", "//", "/./"] {
        let target = format!("/v1/fs/entry?path={path}&recursive=true");
        server.delete(&target).await.problem(400, "invalid_request");
        rename(&server, json!({ "from": path, "to": "/x" })).await.problem(400, "invalid_request");
        let onto = json!({ "from": "/file", "to": path, "overwrite": true });
        rename(&server, onto).await.problem(400, "invalid_request");
    }
    for path in ["/d/..", "/d/../"] {
        server.post("/v1/fs/mkdir?path=/d").await.json(200);
        let deleted = server.delete(&format!("/v1/fs/entry?path={path}&recursive=true")).await;
        assert!(!deleted.status.is_success(), "{path}");
    }
    assert_eq!(fs::read(server.on_disk("file")).unwrap(), b"x");
}

#[tokio::test]
async fn overwriting_follows_links_and_preserves_the_mode() {
    let server = Server::start().await;
    fs::write(server.on_disk("script"), "old").unwrap();
    fs::set_permissions(server.on_disk("script"), fs::Permissions::from_mode(0o750)).unwrap();
    std::os::unix::fs::symlink("script", server.on_disk("link")).unwrap();
    server.put("/link", "new").await.json(200);
    assert_eq!(fs::read(server.on_disk("script")).unwrap(), b"new");
    assert_eq!(fs::metadata(server.on_disk("script")).unwrap().permissions().mode() & 0o777, 0o750);
    assert!(fs::symlink_metadata(server.on_disk("link")).unwrap().is_symlink());
}

#[tokio::test]
async fn an_aborted_write_leaves_the_old_file_unchanged() {
    let server = Server::start().await;
    server.put("/kept", "old").await.json(200);
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let head = "PUT /v1/fs/file?path=/kept HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nonly this";
    connection.write_all(head.as_bytes()).await.unwrap();
    let names = || fs::read_dir(server.control.root()).unwrap().count();
    until(|| names() == 2).await;
    drop(connection);
    until(|| names() == 1).await;
    assert_eq!(fs::read(server.on_disk("kept")).unwrap(), b"old");
}

async fn until(condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), met).await.expect("the condition is met in time");
}

#[tokio::test]
async fn a_temporary_root_is_removed_with_the_last_handle_and_a_given_one_is_not() {
    let control = ControlPlane::builder().build().unwrap();
    let (root, clone) = (control.root().to_owned(), control.clone());
    drop(control);
    assert!(root.is_dir());
    drop(clone);
    assert!(!root.exists());

    let given = tempfile::tempdir().unwrap();
    drop(ControlPlane::builder().root(given.path()).build().unwrap());
    assert!(given.path().is_dir());
    assert!(ControlPlane::builder().root(given.path().join("missing")).build().is_err());
}
