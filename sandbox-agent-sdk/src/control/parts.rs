//! Writes a file that exceeds the server's limit for one request.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use reqwest::Method;

use super::files::Files;
use super::http::{Call, Http};
use super::processes::{Processes, RunOutput, RunProcess};
use super::progress::{Progress, Watched};
use super::route::Route;
use super::upload::Upload;
use crate::Error;
use crate::client::random::random_id;
use crate::control::FsWritten;
use crate::convert::text::OneLine;
use crate::error::HttpError;

/// The size of a part: well below the limits of released servers and of common proxies.
const PART_BYTES: usize = 1024 * 1024;

/// The timeout of the joining command: the longest time that the server lets a command run.
const JOIN_WITHIN: Duration = Duration::from_secs(300);

/// Joins the parts in the working directory to the file `$1` in the parent directory. The last step replaces
/// that file by a rename. Each part is removed after it was copied, so that the disk needs little more space
/// than the file.
const JOIN: &str = r#"set -e
if [ -d "../$1" ]; then echo "$1 is a directory" >&2; exit 1; fi
for part in ./part-*; do cat "$part"; rm "$part"; done > ./whole
mv -f ./whole "../$1"
"#;

/// Writes `upload` to `path`, in parts if it is larger than one.
pub(super) async fn write_in_parts(
    http: Http,
    files: Files,
    path: String,
    upload: Upload,
) -> Result<FsWritten, Error> {
    let mut parts = Parts::new(upload);
    let first = parts.next().await?.unwrap_or_default();
    let Some(second) = parts.next().await? else { return files.write(path, first).await };
    require_commands(&http).await?;
    let id = random_id().map_err(Error::randomness)?;
    let directory = format!("{}.parts-{id}", path.trim_end_matches('/'));
    let outcome = write_and_join(&http, &files, &directory, [first, second], parts).await;
    // No other client knows about the parts. If they cannot be removed, the first failure is returned.
    if let Err(error) = files.delete_all(&directory).await {
        tracing::debug!(error = %OneLine(&error), "failed to remove the parts of a file");
    }
    outcome
}

async fn write_and_join(
    http: &Http,
    files: &Files,
    directory: &str,
    first: [Bytes; 2],
    mut rest: Parts,
) -> Result<FsWritten, Error> {
    let (mut number, mut written) = (0, 0);
    let mut absolute = None;
    let mut waiting = first.into_iter();
    loop {
        let next = match waiting.next() {
            Some(part) => Some(part),
            None => rest.next().await?,
        };
        let Some(part) = next else { break };
        let name = format!("part-{number:08}");
        let stored = files.write(format!("{directory}/{name}"), part).await?;
        number += 1;
        written += stored.bytes_written;
        // Commands and relative paths start in different directories, so the paths are made absolute.
        absolute = stored.path.strip_suffix(&name).map(|parent| parent.trim_end_matches('/').to_owned());
    }
    let directory = absolute.unwrap_or_else(|| directory.to_owned());
    let target = directory.rsplit_once(".parts-").map_or(directory.as_str(), |(target, _)| target).to_owned();
    join(http, &directory, &target).await?;
    Ok(FsWritten { path: target, bytes_written: written })
}

async fn join(http: &Http, directory: &str, target: &str) -> Result<(), Error> {
    let name = target.rsplit('/').next().unwrap_or(target);
    let command = RunProcess::new("sh").args(["-c", JOIN, "sh", name]).cwd(directory).timeout(JOIN_WITHIN);
    let finished = Processes::new(http.clone()).run(command).await?;
    if finished.is_success() {
        return Ok(());
    }
    let end = match finished {
        RunOutput { timed_out: true, .. } => "the command timed out".to_owned(),
        RunOutput { stderr, .. } if !stderr.trim().is_empty() => stderr,
        RunOutput { exit_code, .. } => format!("the command exited with code {exit_code:?}"),
    };
    Err(Error::Http(Box::new(HttpError {
        what: "join the parts of a file".to_owned(),
        status: 200,
        content_type: None,
        problem: None,
        body: end,
        retry_after: None,
    })))
}

/// Fails early if the server cannot run commands.
async fn require_commands(http: &Http) -> Result<(), Error> {
    let call = Call::new("check for process support", Method::GET, Route::new("/v1/processes/config"));
    match http.done(Ok(call)).await {
        Err(error) if error.http().is_some_and(|response| matches!(response.status, 404 | 405 | 501)) => {
            Err(Error::Unsupported { method: "write in parts".to_owned() })
        }
        other => other,
    }
}

/// Splits an upload into parts.
struct Parts {
    body: Watched,
    progress: Arc<Progress>,
    /// Bytes received beyond the end of the last part.
    rest: Bytes,
}

impl Parts {
    fn new(upload: Upload) -> Self {
        let (body, progress) = upload.start();
        Self { body, progress, rest: Bytes::new() }
    }

    /// Returns the next part. Only the last one may be shorter than [`PART_BYTES`].
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let mut part = BytesMut::new();
        loop {
            let fitting = self.rest.len().min(PART_BYTES - part.len());
            part.extend_from_slice(&self.rest.split_to(fitting));
            if part.len() == PART_BYTES {
                return Ok(Some(part.freeze()));
            }
            match self.body.next().await {
                Some(Ok(piece)) => self.rest = piece,
                None => return Ok(Some(part.freeze()).filter(|part| !part.is_empty())),
                Some(Err(error)) => {
                    let source = self.progress.failure().unwrap_or_else(|| Arc::new(error));
                    return Err(Error::Local { what: "write in parts".to_owned(), source });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures::stream;

    use super::*;

    #[tokio::test]
    async fn parts_are_full_until_the_last() {
        let table = [
            (vec![], vec![]),
            (vec![1], vec![1]),
            (vec![PART_BYTES], vec![PART_BYTES]),
            (vec![PART_BYTES - 1, 2], vec![PART_BYTES, 1]),
            (vec![3 * PART_BYTES + 5], vec![PART_BYTES, PART_BYTES, PART_BYTES, 5]),
            (vec![1, PART_BYTES, 0, PART_BYTES - 1], vec![PART_BYTES, PART_BYTES]),
        ];
        for (pieces, expected) in table {
            let pieces: Vec<io::Result<Bytes>> =
                pieces.into_iter().map(|size| Ok(Bytes::from(vec![7; size]))).collect();
            let mut parts = Parts::new(Upload::stream(stream::iter(pieces)));
            let mut sizes = Vec::new();
            while let Some(part) = parts.next().await.unwrap() {
                sizes.push(part.len());
            }
            assert_eq!(sizes, expected);
        }
    }
}
