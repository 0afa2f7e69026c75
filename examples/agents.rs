//! Lists the coding agents on this machine with their versions and capabilities.
//!
//! Starts every installed agent on an embedded server, connects, and prints a table, each row when its agent has
//! responded. Agents that are not installed are listed with their install command. No prompt is sent to a model.

#[tokio::main]
async fn main() {
    sdk_examples::agents::table(|line| print!("{line}")).await;
    println!("\nTo chat with an agent: cargo run --example chat -- --agent NAME");
}
