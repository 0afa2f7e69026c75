//! Paths that try to leave the root.

use std::{fs, os::unix::fs::symlink, path::Path};

use reqwest::Method;
use serde_json::json;
use tempfile::TempDir;

use crate::server::{JSON, Server};

/// Encoded paths that refer to something outside the root, or to nothing.
const HOSTILE: [&str; 14] = [
    "..",
    "../outside",
    "a/../../outside",
    "%2e%2e/outside",
    "%2e%2e%2foutside",
    "..%2F..%2F..%2Fetc%2Fpasswd",
    "/..",
    "/../outside",
    "/../../../../../../etc/passwd",
    "/a/../../outside",
    "/%2e%2e/outside",
    "a%00b",
    "/a%00/../outside",
    "%00",
];

/// A server whose root has a directory beside it with a secret in it.
async fn server_with_secret() -> (Server, TempDir) {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    fs::create_dir(outside.path().join("root")).unwrap();
    let root = outside.path().join("root");
    let server = Server::with(mock_server::ControlPlane::builder().root(&root)).await;
    fs::create_dir(root.join("a")).unwrap();
    (server, outside)
}

fn listing(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn assert_untouched(outside: &TempDir) {
    assert_eq!(listing(outside.path()), ["root", "secret"]);
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
}

#[tokio::test]
async fn no_call_accepts_a_path_that_leaves_the_root() {
    let (server, outside) = server_with_secret().await;
    server.put("/a/file", "mine").await.json(200);
    for path in HOSTILE {
        for call in ["entries", "file", "stat"] {
            server.get(&format!("/v1/fs/{call}?path={path}")).await.problem(400, "invalid_request");
        }
        server.put(path, "mine").await.problem(400, "invalid_request");
        let target = format!("/v1/fs/entry?path={path}&recursive=true");
        server.delete(&target).await.problem(400, "invalid_request");
        server.post(&format!("/v1/fs/mkdir?path={path}/x")).await.problem(400, "invalid_request");
        let decoded = percent_decoded(path);
        for order in [json!({ "from": "/a/file", "to": decoded }), json!({ "from": decoded, "to": "/b" })] {
            let moved = server.send(Method::POST, "/v1/fs/move", JSON, order.to_string()).await;
            moved.problem(400, "invalid_request");
        }
        let upload = format!("/v1/fs/upload-batch?path={path}");
        let uploaded = server.send(Method::POST, &upload, "application/x-tar", vec![0; 1024]).await;
        uploaded.problem(400, "invalid_request");
        let config = format!("/v1/config/mcp?directory={path}&mcpName=a");
        server.get(&config).await.problem(400, "invalid_request");
        server.delete(&config).await.problem(400, "invalid_request");
    }
    assert_untouched(&outside);
    assert_eq!(listing(server.control.root()), ["a"]);
    assert_eq!(listing(&server.on_disk("a")), ["file"]);
}

#[tokio::test]
async fn an_absolute_path_starts_at_the_root() {
    let (server, _outside) = server_with_secret().await;
    server.get("/v1/fs/file?path=/etc/passwd").await.problem(400, "invalid_request");
    server.put("/etc/passwd", "mine").await.json(200);
    assert_eq!(fs::read(server.on_disk("etc/passwd")).unwrap(), b"mine");
    assert_eq!(
        server.get("/v1/fs/file?path=/a/../etc/passwd").await.body,
        "mine",
        "`..` inside the root is allowed"
    );
}

#[tokio::test]
async fn links_that_leave_the_root_are_not_followed() {
    let (server, outside) = server_with_secret().await;
    let links = [
        ("absolute", outside.path().to_path_buf()),
        ("climbing", Path::new("..").to_path_buf()),
        ("twice", Path::new("climbing").to_path_buf()),
    ];
    for (name, target) in &links {
        symlink(target, server.on_disk(name)).unwrap();
    }
    symlink(outside.path().join("secret"), server.on_disk("to-secret")).unwrap();

    let refused = "path leads outside of the root";
    for (name, _) in &links {
        for target in [format!("/v1/fs/entries?path=/{name}"), format!("/v1/fs/stat?path=/{name}")] {
            let detail = server.get(&target).await.problem(400, "invalid_request");
            assert!(detail.contains(refused), "{detail}");
        }
        let read = server.get(&format!("/v1/fs/file?path=/{name}/secret")).await;
        assert!(read.problem(400, "invalid_request").contains(refused));
        server.put(&format!("/{name}/secret"), "mine").await.problem(400, "invalid_request");
        server.put(&format!("/{name}/new"), "mine").await.problem(400, "invalid_request");
        server.post(&format!("/v1/fs/mkdir?path=/{name}/dir")).await.problem(400, "invalid_request");
        let delete = format!("/v1/fs/entry?path=/{name}/secret");
        server.delete(&delete).await.problem(400, "invalid_request");
        let steal = json!({ "from": format!("/{name}/secret"), "to": "/mine" }).to_string();
        server.send(Method::POST, "/v1/fs/move", JSON, steal).await.problem(400, "invalid_request");
        let plant = json!({ "from": "/a", "to": format!("/{name}/planted") }).to_string();
        server.send(Method::POST, "/v1/fs/move", JSON, plant).await.problem(400, "invalid_request");
        let config = format!("/v1/config/skills?directory=/{name}&skillName=a");
        server.delete(&config).await.problem(400, "invalid_request");
    }
    server.get("/v1/fs/file?path=/to-secret").await.problem(400, "invalid_request");
    server.put("/to-secret", "mine").await.problem(400, "invalid_request");
    assert_untouched(&outside);
}

#[tokio::test]
async fn deleting_a_link_deletes_the_link() {
    let (server, outside) = server_with_secret().await;
    symlink(outside.path(), server.on_disk("out")).unwrap();
    fs::create_dir(server.on_disk("full")).unwrap();
    symlink(outside.path(), server.on_disk("full/out")).unwrap();
    server.delete("/v1/fs/entry?path=/out&recursive=true").await.json(200);
    server.delete("/v1/fs/entry?path=/full&recursive=true").await.json(200);
    assert_eq!(listing(server.control.root()), ["a"]);
    assert_untouched(&outside);
}

fn percent_decoded(text: &str) -> String {
    let pairs: Vec<(String, String)> = serde_urlencoded::from_str(&format!("path={text}")).unwrap();
    pairs[0].1.clone()
}
