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
    /// The right key in its variable, and a setting that selects another login, which is not set up.
    Other,
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
    settings: Vec<String>,
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
            Login::Key | Login::Other => Some(KEY),
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
        let is_selected = options.login != Login::Other;
        let (variables, settings) = configure(agent, &root, model, key, is_selected);
        let settings = variables.iter().map(|(name, _)| (*name).to_owned()).chain(settings).collect();
        environment.extend(variables);
        let launcher = root.join("launch");
        let record = options.recorded.then(|| RECORDS.map(|name| root.join(name)));
        write_launcher(&launcher, &project, &environment, command, record.as_ref());
        Self { folder, settings, project, launcher }
    }

    /// The directory that the agent works in.
    pub fn project(&self) -> &Path {
        &self.project
    }

    /// The program that starts the agent with its configuration.
    pub fn launcher(&self) -> &Path {
        &self.launcher
    }

    /// The names of the variables and settings that the agent was configured with, for example `provider.*.npm`. `*`
    /// stands for a name that this configuration has chosen.
    pub fn settings(&self) -> &[String] {
        &self.settings
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

/// Writes the settings, and returns the variables and the names of the settings.
fn configure(
    agent: RealAgent,
    root: &Path,
    model: &str,
    key: Option<&str>,
    is_selected: bool,
) -> (Variables, Vec<String>) {
    let on = || "1".to_owned();
    let selected = |by_key: &str, other: &str| {
        let login = if is_selected { by_key } else { other };
        json!({ "auth": { "selectedType": login } })
    };
    let mut variables: Variables = Vec::new();
    let mut give = |name: &'static str| variables.extend(key.map(|key| (name, key.to_owned())));
    let settings = match agent {
        RealAgent::OpenCode => {
            let settings = opencode(model, key);
            write(&root.join("config/opencode/opencode.json"), &settings.to_string());
            for name in [
                "OPENCODE_DISABLE_MODELS_FETCH",
                "OPENCODE_DISABLE_AUTOUPDATE",
                "OPENCODE_DISABLE_LSP_DOWNLOAD",
                "OPENCODE_DISABLE_DEFAULT_PLUGINS",
            ] {
                variables.push((name, on()));
            }
            names_in(&settings)
        }
        RealAgent::Codex => {
            give("SCRIPTED_KEY");
            give("OPENAI_API_KEY");
            let settings = codex(model, &root.join("project"), is_selected);
            let lines = settings.iter().map(|(name, value)| format!("{name} = {value}\n"));
            write(&root.join("home/.codex/config.toml"), &lines.collect::<String>());
            variables.push(("CODEX_HOME", root.join("home/.codex").display().to_string()));
            settings.iter().map(|(name, _)| general(name)).collect()
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
            Vec::new()
        }
        RealAgent::Gemini => {
            give("GEMINI_API_KEY");
            variables.push(("GOOGLE_GEMINI_BASE_URL", model.to_owned()));
            variables.push(("GEMINI_CLI_TRUST_WORKSPACE", "true".to_owned()));
            variables.push(("GEMINI_TELEMETRY_ENABLED", "false".to_owned()));
            let settings = json!({
                "security": selected("gemini-api-key", "compute-default-credentials"),
                "general": {
                    "enableAutoUpdate": false, "disableAutoUpdate": true,
                    "sessionRetention": { "enabled": false },
                },
                "privacy": { "usageStatisticsEnabled": false },
                "telemetry": { "enabled": false },
            });
            write(&root.join("home/.gemini/settings.json"), &settings.to_string());
            names_in(&settings)
        }
        RealAgent::Qwen => {
            give("OPENAI_API_KEY");
            variables.push(("OPENAI_BASE_URL", format!("{model}/v1")));
            variables.push(("OPENAI_MODEL", "scripted-one".to_owned()));
            let settings = json!({
                "security": selected("openai", "qwen-oauth"),
                "general": { "enableAutoUpdate": false, "disableAutoUpdate": true },
                "privacy": { "usageStatisticsEnabled": false },
                "telemetry": { "enabled": false },
            });
            write(&root.join("home/.qwen/settings.json"), &settings.to_string());
            names_in(&settings)
        }
    };
    (variables, settings)
}

/// The name of a setting, with `*` for the names that this configuration has chosen.
fn general(name: &str) -> String {
    let name = name.replace(".scripted.", ".*.");
    match (name.find('"'), name.rfind('"')) {
        (Some(first), Some(last)) => format!("{}*{}", &name[..first], &name[last + 1..]),
        _ => name,
    }
}

/// The names of the settings in an object. Models are one setting.
fn names_in(settings: &Value) -> Vec<String> {
    fn add(name: &str, value: &Value, names: &mut Vec<String>) {
        match value.as_object().filter(|_| !name.ends_with(".models")) {
            Some(members) => members.iter().for_each(|(member, value)| {
                add(&[name, ".", member].concat(), value, names);
            }),
            None => names.push(general(name.trim_start_matches('.'))),
        }
    }
    let mut names = Vec::new();
    add("", settings, &mut names);
    names
}

/// The settings of codex, as TOML.
fn codex(model: &str, project: &Path, is_selected: bool) -> Vec<(String, String)> {
    let text = |value: &str| format!("{value:?}");
    let url = format!("{model}/v1");
    // Its own provider requires a login.
    let own = [
        ("model_provider", text("openai")),
        ("openai_base_url", text(&url)),
        ("features.enable_request_compression", "false".to_owned()),
    ];
    let scripted = [
        ("model_provider", text("scripted")),
        ("model_providers.scripted.name", text("Scripted")),
        ("model_providers.scripted.base_url", text(&url)),
        ("model_providers.scripted.env_key", text("SCRIPTED_KEY")),
        ("model_providers.scripted.wire_api", text("responses")),
        ("model_providers.scripted.request_max_retries", "1".to_owned()),
        ("model_providers.scripted.stream_max_retries", "1".to_owned()),
    ];
    let provider = if is_selected { scripted.to_vec() } else { own.to_vec() };
    let trust = format!("projects.{project:?}.trust_level");
    let settings = [
        ("model", text("gpt-5.4")),
        ("approval_policy", text("untrusted")),
        ("sandbox_mode", text("workspace-write")),
        ("model_reasoning_summary", text("auto")),
        ("model_supports_reasoning_summaries", "true".to_owned()),
        ("check_for_update_on_startup", "false".to_owned()),
        ("analytics.enabled", "false".to_owned()),
        (trust.as_str(), text("untrusted")),
    ];
    settings.into_iter().chain(provider).map(|(name, value)| (name.to_owned(), value)).collect()
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
