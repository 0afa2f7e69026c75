use serde_json::{Value, json};

use super::{
    LocalMcpServer, McpCommand, McpOAuth, McpOAuthSettings, McpServerConfig, McpTransport, RemoteMcpServer,
    without_secrets,
};

fn read(value: Value) -> McpServerConfig {
    serde_json::from_value(value).unwrap()
}

#[test]
fn aliases_are_read_and_the_one_name_is_written() {
    // The sent form, and the form in which the released server stores it.
    let table = [
        (
            json!({"type": "local", "command": "npx", "args": ["-y", "x"], "env": {"A": "1"}, "timeoutMs": 5}),
            json!({"type": "local", "command": "npx", "args": ["-y", "x"], "env": {"A": "1"}, "timeoutMs": 5}),
        ),
        (
            json!({"type": "stdio", "command": ["npx", "x"]}),
            json!({"type": "local", "command": ["npx", "x"], "args": []}),
        ),
        (
            json!({"type": "stdio", "command": "x", "environment": {"A": "1"}, "timeout": 7, "cwd": "/w"}),
            json!({"type": "local", "command": "x", "args": [], "env": {"A": "1"}, "timeoutMs": 7, "cwd": "/w"}),
        ),
        (
            json!({"type": "http", "url": "http://x", "headers": {"h": "v"}, "oauth": false, "transport": "sse"}),
            json!({"type": "remote", "url": "http://x", "headers": {"h": "v"}, "oauth": false, "transport": "sse"}),
        ),
        (
            json!({"type": "remote", "url": "http://x", "envHttpHeaders": {"h": "V"}, "bearerTokenEnvVar": "T",
                "oauth": {"clientId": "c", "clientSecret": "s", "scope": "a b"}, "enabled": false, "timeout": 1}),
            json!({"type": "remote", "url": "http://x", "envHeaders": {"h": "V"}, "bearerTokenEnvVar": "T",
                "oauth": {"clientId": "c", "clientSecret": "s", "scope": "a b"}, "enabled": false, "timeoutMs": 1}),
        ),
    ];
    for (sent, stored) in table {
        assert_eq!(serde_json::to_value(read(sent)).unwrap(), stored);
        assert_eq!(serde_json::to_value(read(stored.clone())).unwrap(), stored);
    }
}

#[test]
fn the_fields_hold_what_was_read() {
    let McpServerConfig::Local(local) = read(json!({"type": "stdio", "command": ["npx", "x"], "note": 1}))
    else {
        panic!("not local")
    };
    assert_eq!(local.command, McpCommand::Words(vec!["npx".to_owned(), "x".to_owned()]));
    assert_eq!(local.other.get("note"), Some(&json!(1)));
    let McpServerConfig::Remote(remote) =
        read(json!({"type": "http", "url": "http://x", "oauth": {"scope": "a"},
        "transport": "carrier-pigeon"}))
    else {
        panic!("not remote")
    };
    let settings = McpOAuthSettings { scope: Some("a".to_owned()), ..McpOAuthSettings::default() };
    assert_eq!(remote.oauth, Some(McpOAuth::Settings(settings)));
    assert_eq!(remote.transport, Some(McpTransport::Other("carrier-pigeon".to_owned())));
}

#[test]
fn an_unknown_kind_is_preserved_and_a_damaged_one_is_an_error() {
    for unknown in [json!({"type": "weird", "x": 1}), json!({"command": "x"}), json!({"type": 5})] {
        let config = read(unknown.clone());
        assert!(matches!(config, McpServerConfig::Other(_)), "{unknown}");
        assert_eq!(serde_json::to_value(config).unwrap(), unknown);
    }
    for broken in [json!({"type": "local"}), json!({"type": "remote", "url": 5}), json!("local"), json!(null)]
    {
        assert!(serde_json::from_value::<McpServerConfig>(broken.clone()).is_err(), "{broken}");
    }
}

#[test]
fn the_builders_write_what_the_server_reads() {
    let local = LocalMcpServer::new("npx").args(["-y", "tools"]).env("A", "1").cwd("/w");
    assert_eq!(
        serde_json::to_value(McpServerConfig::from(local)).unwrap(),
        json!({"type": "local", "command": "npx", "args": ["-y", "tools"], "env": {"A": "1"}, "cwd": "/w"})
    );
    let remote = RemoteMcpServer::new("https://x/mcp")
        .header("h", "v")
        .bearer_token_env_var("TOKEN")
        .transport(McpTransport::Http);
    assert_eq!(
        serde_json::to_value(McpServerConfig::from(remote)).unwrap(),
        json!({"type": "remote", "url": "https://x/mcp", "headers": {"h": "v"}, "bearerTokenEnvVar": "TOKEN",
            "transport": "http"})
    );
}

#[test]
fn no_secret_is_shown_by_debug() {
    for config in [
        json!({"type": "local", "command": "run --key hush", "args": ["--token", "hush"], "env": {"KEY": "hush"},
            "more": "hush"}),
        json!({"type": "local", "command": ["run", "hush"]}),
        json!({"type": "remote", "url": "https://me:hush@x/mcp?key=hush#hush", "headers": {"Authorization": "hush"},
            "oauth": {"clientId": "c", "clientSecret": "hush"}, "more": "hush"}),
        json!({"type": "weird", "token": "hush"}),
    ] {
        let shown = format!("{:?}", read(config));
        assert!(!shown.contains("hush"), "{shown}");
    }
    let shown = format!("{:?}", read(json!({"type": "local", "command": "npx", "env": {"KEY": "hush"}})));
    assert!(shown.contains("npx") && shown.contains("KEY"), "{shown}");
}

#[test]
fn a_url_is_shown_without_what_may_be_secret() {
    for (url, shown) in [
        ("https://x/mcp", "https://x/mcp"),
        ("https://me:pw@x:1/mcp?k=v", "https://x:1/mcp"),
        ("https://x/@scope", "https://x/@scope"),
        ("https://x", "https://x"),
        ("not a url?k=v", "not a url"),
        ("", ""),
    ] {
        assert_eq!(without_secrets(url), shown);
    }
}
