//! The example `agents` as a binary of this package, so that tests can run it.

#[tokio::main]
async fn main() {
    sdk_examples::agents::table(|line| print!("{line}")).await;
}
