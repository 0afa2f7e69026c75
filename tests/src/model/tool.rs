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
    let Some(tool) = first(tools, &WRITERS) else {
        let patch = patch(path, content);
        return run(tools, &format!("apply_patch <<'EOF'\n{patch}\nEOF\n"));
    };
    if tool.name == "apply_patch" {
        let patch = patch(path, content);
        if tool.schema.is_null() {
            return Some(Step::Call { name: tool.name.clone(), arguments: json!(patch) });
        }
        return Some(call(tool, |name, _| (name == "input" || name == "patch").then(|| json!(patch))));
    }
    Some(call(tool, |name, _| match name {
        "filePath" | "file_path" | "path" | "absolute_path" => Some(json!(path)),
        "content" => Some(json!(content)),
        _ => None,
    }))
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

fn patch(path: &str, content: &str) -> String {
    let lines: Vec<String> = content.lines().map(|line| format!("+{line}")).collect();
    format!("*** Begin Patch\n*** Add File: {path}\n{}\n*** End Patch", lines.join("\n"))
}
