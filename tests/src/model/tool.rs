//! The tools that a request offers, and how to call them.

use serde_json::{Map, Value, json};

use super::reply::Step;

/// Names of tools that run a command, as the agents call them.
const SHELLS: [&str; 8] = [
    "bash",
    "Bash",
    "run_shell_command",
    "exec_command",
    "shell_command",
    "shell",
    "local_shell",
    "terminal",
];

/// Names of tools that write a file.
const WRITERS: [&str; 4] = ["write", "Write", "write_file", "apply_patch"];

/// Names of tools that read a file.
const READERS: [&str; 3] = ["read", "Read", "read_file"];

/// Names of tools that replace a text in a file.
const EDITORS: [&str; 4] = ["edit", "Edit", "replace", "apply_patch"];

/// Names of the argument that is the path of a file.
const PATHS: [&str; 4] = ["filePath", "file_path", "path", "absolute_path"];

/// One tool of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tool {
    /// Its name.
    pub(super) name: String,
    /// The JSON schema of its arguments; null for a tool with free input.
    pub(super) schema: Value,
}

/// A call that runs a command, by the first tool that can.
pub(super) fn run(tools: &[Tool], command: &str) -> Option<Step> {
    let tool = first(tools, &SHELLS)?;
    Some(call(tool, |name, schema| match name {
        "command" | "cmd" if is_array(schema) => Some(json!(["bash", "-lc", command])),
        "command" | "cmd" => Some(json!(command)),
        "description" => Some(json!("Runs a command of the script")),
        _ => None,
    }))
}

/// A call that writes a file, by the first tool that can; with nothing but a shell, the shell does it.
pub(super) fn write(tools: &[Tool], path: &str, content: &str) -> Option<Step> {
    match first(tools, &WRITERS).filter(|tool| tool.name != "apply_patch") {
        Some(tool) => Some(call(tool, |name, _| match name {
            "content" => Some(json!(content)),
            name => PATHS.contains(&name).then(|| json!(path)),
        })),
        None => {
            let lines: Vec<String> = content.lines().map(|line| format!("+{line}")).collect();
            patch(tools, &format!("*** Add File: {path}\n{}", lines.join("\n")))
        }
    }
}

/// A call that reads a file, by the first tool that can; with nothing but a shell, the shell does it.
pub(super) fn read(tools: &[Tool], path: &str) -> Option<Step> {
    match first(tools, &READERS) {
        Some(tool) => Some(call(tool, |name, _| PATHS.contains(&name).then(|| json!(path)))),
        None => run(tools, &format!("cat {path}")),
    }
}

/// A call that replaces a line of a file by another, by the first tool that can.
pub(super) fn edit(tools: &[Tool], path: &str, (old, new): (&str, &str)) -> Option<Step> {
    match first(tools, &EDITORS).filter(|tool| tool.name != "apply_patch") {
        Some(tool) => Some(call(tool, |name, _| match name {
            "oldString" | "old_string" => Some(json!(old)),
            "newString" | "new_string" => Some(json!(new)),
            name => PATHS.contains(&name).then(|| json!(path)),
        })),
        None => patch(tools, &format!("*** Update File: {path}\n@@\n-{old}\n+{new}")),
    }
}

/// A call that applies a patch, by the tool for patches or by the shell.
fn patch(tools: &[Tool], changes: &str) -> Option<Step> {
    let patch = format!("*** Begin Patch\n{changes}\n*** End Patch");
    let Some(tool) = first(tools, &["apply_patch"]) else {
        return run(tools, &format!("apply_patch <<'EOF'\n{patch}\nEOF\n"));
    };
    if tool.schema.is_null() {
        return Some(Step::Call { name: tool.name.clone(), arguments: json!(patch) });
    }
    Some(call(tool, |name, _| (name == "input" || name == "patch").then(|| json!(patch))))
}

/// A call of the first tool whose name contains this, with these arguments.
pub(super) fn named(tools: &[Tool], name: &str, arguments: Value) -> Option<Step> {
    let tool = tools.iter().find(|tool| tool.name.contains(name))?;
    Some(Step::Call { name: tool.name.clone(), arguments })
}

fn first<'t>(tools: &'t [Tool], names: &[&str]) -> Option<&'t Tool> {
    names.iter().find_map(|name| tools.iter().find(|tool| tool.name == *name))
}

/// Calls a tool with what `value` knows of its arguments, and something for what it requires besides.
fn call(tool: &Tool, value: impl Fn(&str, &Value) -> Option<Value>) -> Step {
    let properties = tool.schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let required = tool.schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut arguments = Map::new();
    for (name, schema) in &properties {
        if let Some(value) = value(name, schema) {
            arguments.insert(name.clone(), value);
        } else if required.iter().any(|required| required == name) {
            arguments.insert(name.clone(), placeholder(schema));
        }
    }
    Step::Call { name: tool.name.clone(), arguments: arguments.into() }
}

fn is_array(schema: &Value) -> bool {
    schema["type"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("array"))
}

fn placeholder(schema: &Value) -> Value {
    match schema["type"].as_str().unwrap_or_default().to_ascii_lowercase().as_str() {
        "boolean" => json!(false),
        "number" | "integer" => json!(1),
        "array" => json!([]),
        "object" => json!({}),
        _ => schema["enum"].get(0).cloned().unwrap_or_else(|| json!("scripted")),
    }
}
