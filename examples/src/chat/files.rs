//! The files of the sandbox.

use futures::StreamExt;
use sandbox_agent_sdk::{Error, SandboxAgentClient};

use super::line::{Line, Style};

/// How many entries of a directory, or lines of a file, are shown.
const SHOWN: usize = 40;
/// How much of a file is read.
const READ: usize = 64 * 1024;

/// Resolves a path that the user entered.
pub(super) fn path_in(directory: &str, path: Option<&str>) -> String {
    match path {
        None => directory.to_owned(),
        Some(path) if path.starts_with('/') => path.to_owned(),
        Some(path) => format!("{}/{path}", directory.trim_end_matches('/')),
    }
}

/// Lists a directory, or shows the beginning of a file.
pub(super) async fn show(client: &SandboxAgentClient, path: &str) -> Result<Vec<Line>, Error> {
    let files = client.files();
    if files.stat(path).await?.is_directory() {
        let mut entries = files.list(path).await?;
        entries.sort_by(|a, b| b.is_directory().cmp(&a.is_directory()).then_with(|| a.name.cmp(&b.name)));
        let mut lines = vec![Line::new(Style::Accent, path)];
        lines.extend(entries.iter().take(SHOWN).map(|entry| match entry.is_directory() {
            true => Line::new(Style::Dim, "          ").with(Style::Bold, &format!("{}/", entry.name)),
            false => Line::new(Style::Dim, &format!("{:>8}  ", entry.size)).with(Style::Normal, &entry.name),
        }));
        lines.extend(more(entries.len()));
        return Ok(lines);
    }
    let mut reader = files.open(path).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() > READ {
            bytes.truncate(READ);
            break;
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = vec![Line::new(Style::Accent, path)];
    lines.extend(text.lines().take(SHOWN).map(|line| Line::new(Style::Normal, &format!("  {line}"))));
    lines.extend(more(text.lines().count()));
    Ok(lines)
}

fn more(count: usize) -> Option<Line> {
    let more = count.checked_sub(SHOWN).filter(|more| *more > 0)?;
    Some(Line::new(Style::Dim, &format!("  … {more} more")))
}

#[cfg(test)]
mod tests {
    use super::path_in;

    #[test]
    fn paths_start_in_the_directory_of_the_session() {
        assert_eq!(path_in("/work", None), "/work");
        assert_eq!(path_in("/work", Some("src")), "/work/src");
        assert_eq!(path_in("/", Some("src")), "/src");
        assert_eq!(path_in("/work", Some("/etc")), "/etc");
    }
}
