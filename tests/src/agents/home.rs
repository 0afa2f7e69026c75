//! A scratch home for one agent: configuration, keys and a launcher.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::RealAgent;

/// The key that agents are given for the model.
pub const KEY: &str = "scripted-key";

/// The files with the standard input and output of an agent.
const RECORDS: [&str; 2] = ["input", "output"];

/// What the agent knows of the user's account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Login {
    /// The right key.
    #[default]
    Key,
    /// The right key in its variable, without a setting that selects a login.
    Unselected,
    /// A key that the model refuses.
    WrongKey,
    /// Nothing.
    Missing,
}

/// What a home is made with.
#[derive(Debug, Clone, Default)]
pub struct HomeOptions {
    /// The account.
    pub login: Login,
    /// Whether the messages of the agent are recorded.
    pub recorded: bool,
}

/// Home, XDG and project directories of one agent, removed with this value.
#[derive(Debug)]
pub struct AgentHome {
    folder: TempDir,
    project: PathBuf,
    launcher: PathBuf,
}

impl AgentHome {
    /// Writes the configuration with which this agent talks to the model at `model` and to nothing else, and a
    /// launcher that starts `command` with it.
    ///
    /// # Panics
    /// When the disk cannot be written to.
    pub fn new(agent: RealAgent, command: &[String], model: &str, options: &HomeOptions) -> Self {
        let folder = tempfile::Builder::new().prefix("agent-").tempdir().expect("a temporary folder");
        let root = folder.path().canonicalize().expect("a folder");
        let project = root.join("project");
        for name in ["project", "home", "config", "data", "state", "cache", "tmp"] {
            fs::create_dir(root.join(name)).expect("a folder");
        }
        let key = match options.login {
            Login::Key | Login::Unselected => Some(KEY),
            Login::WrongKey => Some("wrong-key"),
            Login::Missing => None,
        };
        let at = |name: &str| root.join(name).display().to_string();
        let mut environment = vec![
            ("PATH", std::env::var("PATH").unwrap_or_default()),
            ("HOME", at("home")),
            ("XDG_CONFIG_HOME", at("config")),
            ("XDG_DATA_HOME", at("data")),
            ("XDG_STATE_HOME", at("state")),
            ("XDG_CACHE_HOME", at("cache")),
            ("TMPDIR", at("tmp")),
            ("LANG", "C.UTF-8".to_owned()),
            ("NO_COLOR", "1".to_owned()),
            ("NO_PROXY", "*".to_owned()),
        ];
        let is_selected = options.login != Login::Unselected;
        environment.extend(configure(agent, &root, model, key, is_selected));
        let launcher = root.join("launch");
        let record = options.recorded.then(|| RECORDS.map(|name| root.join(name)));
        write_launcher(&launcher, &project, &environment, command, record.as_ref());
        Self { folder, project, launcher }
    }

    /// The directory that the agent works in.
    pub fn project(&self) -> &Path {
        &self.project
    }

    /// The program that starts the agent with its configuration.
    pub fn launcher(&self) -> &Path {
        &self.launcher
    }

    /// The folder that everything is in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The messages that the agent was sent and those that it has sent, if they are recorded.
    pub fn recorded(&self) -> [Vec<Value>; 2] {
        RECORDS.map(|name| {
            let text = fs::read_to_string(self.folder().join(name)).unwrap_or_default();
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
        })
    }
}

type Variables = Vec<(&'static str, String)>;

fn configure(agent: RealAgent, root: &Path, model: &str, key: Option<&str>, is_selected: bool) -> Variables {
    let on = || "1".to_owned();
    let selected = |login: &str| match is_selected {
        true => json!({ "auth": { "selectedType": login } }),
        false => json!({}),
    };
    let mut variables: Variables = Vec::new();
    let mut give = |name: &'static str| variables.extend(key.map(|key| (name, key.to_owned())));
    match agent {
        RealAgent::OpenCode => {
            write(&root.join("config/opencode/opencode.json"), &opencode(model, key).to_string());
            for name in [
                "OPENCODE_DISABLE_MODELS_FETCH",
                "OPENCODE_DISABLE_AUTOUPDATE",
                "OPENCODE_DISABLE_LSP_DOWNLOAD",
                "OPENCODE_DISABLE_DEFAULT_PLUGINS",
            ] {
                variables.push((name, on()));
            }
        }
        RealAgent::Codex => {
            give("SCRIPTED_KEY");
            give("OPENAI_API_KEY");
            let config = format!(
                "model = \"gpt-5.4\"\nmodel_provider = \"scripted\"\napproval_policy = \"untrusted\"\n\
                 sandbox_mode = \"workspace-write\"\nmodel_reasoning_summary = \"auto\"\n\
                 model_supports_reasoning_summaries = true\ncheck_for_update_on_startup = false\n\
                 [analytics]\nenabled = false\n\
                 [model_providers.scripted]\nname = \"Scripted\"\nbase_url = \"{model}/v1\"\n\
                 env_key = \"SCRIPTED_KEY\"\nwire_api = \"responses\"\nrequest_max_retries = 1\n\
                 stream_max_retries = 1\n\
                 [projects.\"{}\"]\ntrust_level = \"untrusted\"\n",
                root.join("project").display()
            );
            write(&root.join("home/.codex/config.toml"), &config);
            variables.push(("CODEX_HOME", root.join("home/.codex").display().to_string()));
        }
        RealAgent::Claude => {
            give("ANTHROPIC_API_KEY");
            variables.push(("ANTHROPIC_BASE_URL", model.to_owned()));
            variables.push(("CLAUDE_CONFIG_DIR", root.join("home/.claude").display().to_string()));
            for name in [
                "IS_SANDBOX",
                "DISABLE_AUTOUPDATER",
                "DISABLE_TELEMETRY",
                "DISABLE_ERROR_REPORTING",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            ] {
                variables.push((name, on()));
            }
        }
        RealAgent::Gemini => {
            give("GEMINI_API_KEY");
            variables.push(("GOOGLE_GEMINI_BASE_URL", model.to_owned()));
            variables.push(("GEMINI_CLI_TRUST_WORKSPACE", "true".to_owned()));
            variables.push(("GEMINI_TELEMETRY_ENABLED", "false".to_owned()));
            let settings = json!({
                "security": selected("gemini-api-key"),
                "general": {
                    "enableAutoUpdate": false, "disableAutoUpdate": true,
                    "sessionRetention": { "enabled": false },
                },
                "privacy": { "usageStatisticsEnabled": false },
                "telemetry": { "enabled": false },
            });
            write(&root.join("home/.gemini/settings.json"), &settings.to_string());
        }
        RealAgent::Qwen => {
            give("OPENAI_API_KEY");
            variables.push(("OPENAI_BASE_URL", format!("{model}/v1")));
            variables.push(("OPENAI_MODEL", "scripted-one".to_owned()));
            let settings = json!({
                "security": selected("openai"),
                "general": { "enableAutoUpdate": false, "disableAutoUpdate": true },
                "privacy": { "usageStatisticsEnabled": false },
                "telemetry": { "enabled": false },
            });
            write(&root.join("home/.qwen/settings.json"), &settings.to_string());
        }
    }
    variables
}

fn opencode(model: &str, key: Option<&str>) -> Value {
    let mut options = json!({ "baseURL": format!("{model}/v1") });
    if let Some(key) = key {
        options["apiKey"] = key.into();
    }
    let one_model = |name: &str| {
        json!({
            "name": name, "tool_call": true, "reasoning": true, "attachment": true,
            "modalities": { "input": ["text", "image"], "output": ["text"] },
            "limit": { "context": 100_000, "output": 8_000 }, "cost": { "input": 1, "output": 2 },
        })
    };
    json!({
        "autoupdate": false, "share": "disabled", "model": "scripted/one", "small_model": "scripted/one",
        "permission": { "edit": "ask", "bash": "ask", "webfetch": "ask" },
        "provider": { "scripted": {
            "npm": "@ai-sdk/openai-compatible", "name": "Scripted", "options": options,
            "models": { "one": one_model("One"), "two": one_model("Two") },
        } },
    })
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("a file");
}

fn write_launcher(
    path: &Path,
    project: &Path,
    environment: &[(&str, String)],
    command: &[String],
    record: Option<&[PathBuf; 2]>,
) {
    let quoted = |word: &str| format!("'{}'", word.replace('\'', r"'\''"));
    let variables = environment.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
    let words: Vec<String> = variables.chain(command.iter().map(|word| quoted(word))).collect();
    let [project, words] = [quoted(&project.display().to_string()), words.join(" ")];
    let run = match record.map(|files| files.each_ref().map(|file| quoted(&file.display().to_string()))) {
        Some([input, output]) => format!("tee -a {input} | env -i {words} | tee -a {output}"),
        None => format!("exec env -i {words}"),
    };
    write(path, &format!("#!/bin/sh\ncd {project}\n{run}\n"));
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a launcher that can be run");
}
