//! Files of a sandbox: write, list, stream, and handle a rejected write.
//!
//! Runs against an embedded server, or against the server at `SANDBOX_AGENT_URL` (with the token in
//! `SANDBOX_AGENT_TOKEN`, if required). Uses one directory, which is deleted at the end.

use std::env;

use futures::{StreamExt, stream};
use mock_server::MockServer;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::{ControlPlane, Files, FsMove, HealthWait, Upload};
use sandbox_agent_sdk::text::printable;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let (url, _embedded) = match env::var("SANDBOX_AGENT_URL") {
        Ok(url) => (url, None),
        Err(_) => {
            let server = MockServer::start().await;
            (server.url(), Some(server))
        }
    };
    let mut builder = ControlPlane::builder(url);
    if let Ok(token) = env::var("SANDBOX_AGENT_TOKEN") {
        builder = builder.token(token);
    }
    let server = builder.build()?;
    let waiting = HealthWait::default().on_phase(|phase| println!("the server is {phase}, waiting"));
    server.health().wait(waiting).await?;

    let files = server.files();
    let outcome = tour(&files, "files-example").await;
    files.delete_all("files-example").await?;
    outcome
}

async fn tour(files: &Files, directory: &str) -> Result<(), Error> {
    let notes = format!("{directory}/notes #1 (50%).txt");
    let written = files.write(&notes, "any name will do\n").await?;
    println!("wrote {} bytes to {}", written.bytes_written, printable(&written.path));

    // An upload can be any stream: a local file, a download.
    let lines = stream::iter(1..=10_000).map(|number| Ok::<_, std::io::Error>(format!("line {number}\n")));
    files.write(format!("{directory}/lines.txt"), Upload::stream(lines)).await?;
    files
        .rename(FsMove::new(format!("{directory}/lines.txt"), format!("{directory}/many/lines.txt")))
        .await?;

    // Downloads are streams too, so the size does not matter.
    let mut reader = files.open(format!("{directory}/many/lines.txt")).await?;
    let (mut pieces, mut bytes) = (0, 0);
    while let Some(piece) = reader.next().await {
        pieces += 1;
        bytes += piece?.len();
    }
    println!("read {bytes} bytes in {pieces} chunks");

    for entry in files.list(directory).await? {
        println!("{:>9} {:>6} {}", entry.entry_type.as_str(), entry.size, printable(&entry.name));
    }
    println!("not found: {}", !files.exists(format!("{directory}/nothing")).await?);

    match files.write(format!("{directory}/huge"), vec![0; 3 * 1024 * 1024]).await {
        Err(Error::PayloadTooLarge { size, limit, .. }) => println!("too large: {size:?} of {limit:?} bytes"),
        Err(other) => return Err(other),
        Ok(written) => println!("this server accepts {} bytes at once", written.bytes_written),
    }
    Ok(())
}
