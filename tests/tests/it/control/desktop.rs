//! The desktop of the released server, on a real virtual display.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use sandbox_agent_sdk::control::desktop::{
    Desktop, DesktopProblem, DesktopProblemKind, DesktopState, DesktopWindow, ImageFormat, KeyModifiers,
    LaunchApp, MouseButton, RecordingStatus, Region, ScreenshotOptions, Selection, StartDesktop,
};
use sandbox_agent_sdk::control::processes::ProcessOwner;
use sdk_tests::{say_not_run, within};
use tempfile::TempDir;

use super::processes::written_until;
use super::{Kind, Server};

/// The size of the display.
const WIDTH: u32 = 640;
const HEIGHT: u32 = 480;

/// The programs that the server and these tests need.
const PROGRAMS: [&str; 9] =
    ["Xvfb", "openbox", "xdotool", "import", "convert", "display", "xrandr", "xclip", "xterm"];

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// Starts a server with a desktop. `None`, with a note on standard error, if programs are missing.
async fn start() -> Option<(Server, Desktop, TempDir)> {
    let missing: Vec<&str> = PROGRAMS.into_iter().filter(|program| !is_installed(program)).collect();
    if !missing.is_empty() {
        let why = format!("the desktop needs {missing:?}");
        assert!(std::env::var_os("CI").is_none(), "{why}");
        say_not_run(&why);
        return None;
    }
    let server = Server::start(Kind::Released).await?;
    let desktop = server.plane().desktop();
    assert_eq!(desktop.status().await.expect("a status").state, DesktopState::Inactive);
    let inactive = desktop.windows().await.expect_err("it is not running");
    assert_eq!(DesktopProblem::of(&inactive).expect("a desktop problem").kind, DesktopProblemKind::Inactive);
    let started = within(
        "starting",
        desktop.start(StartDesktop::new().size(WIDTH, HEIGHT).display_num(free_display())),
    );
    let started = started.await.expect("a desktop");
    assert_eq!(started.state, DesktopState::Active, "{started:?}");
    let resolution = desktop.display_info().await.expect("a display").resolution;
    assert_eq!((resolution.width, resolution.height), (WIDTH, HEIGHT));
    Some((server, desktop, tempfile::tempdir().expect("a folder")))
}

/// Returns a display number that no other test uses: each process has four numbers, one for each test.
fn free_display() -> u32 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    200 + std::process::id() % 400 * 4 + TAKEN.fetch_add(1, Ordering::Relaxed) % 4
}

/// Returns a pixel of the drawn picture: stripes and a gradient, so that a shift by one pixel is detectable.
fn pixel(x: u32, y: u32) -> [u8; 3] {
    [(x % 256) as u8, (y % 256) as u8, if (x / 7 + y / 5).is_multiple_of(2) { 255 } else { 0 }]
}

fn picture(region: Region) -> Vec<u8> {
    let rows = region.y..region.y + region.height;
    rows.flat_map(|y| (region.x..region.x + region.width).flat_map(move |x| pixel(x, y))).collect()
}

/// Decodes a picture. Returns its pixels and its size.
fn decoded(folder: &TempDir, name: &str, bytes: &[u8]) -> (Vec<u8>, String) {
    let file = folder.path().join(name);
    std::fs::write(&file, bytes).expect("it is written");
    let path = file.to_str().expect("text");
    let pixels = Command::new("convert").args([path, "-depth", "8", "rgb:-"]).output().expect("convert");
    assert!(pixels.status.success(), "{}", String::from_utf8_lossy(&pixels.stderr));
    let size = Command::new("convert").args([path, "-format", "%wx%h", "info:-"]).output().expect("convert");
    (pixels.stdout, String::from_utf8(size.stdout).expect("text"))
}

async fn window(desktop: &Desktop, app: LaunchApp) -> DesktopWindow {
    let launched = within("launching", desktop.launch(app.wait())).await.expect("an application");
    let id = launched.window_id.expect("its window");
    let windows = desktop.windows().await.expect("windows");
    windows.into_iter().find(|window| window.id == id).expect("the window is listed")
}

#[tokio::test]
async fn a_picture_on_the_display_is_the_picture_in_the_screenshot() {
    let Some((_server, desktop, folder)) = start().await else { return };
    let whole = Region { x: 0, y: 0, width: WIDTH, height: HEIGHT };
    let file = folder.path().join("picture.ppm");
    let header = format!("P6\n{WIDTH} {HEIGHT}\n255\n").into_bytes();
    std::fs::write(&file, [header, picture(whole)].concat()).expect("a picture");
    let draw = LaunchApp::new("display").args(["-window", "root", file.to_str().expect("text")]);
    desktop.launch(draw).await.expect("the picture is drawn");

    let expected = picture(whole);
    let shown = async {
        loop {
            let taken = desktop.screenshot(ScreenshotOptions::new()).await.expect("a screenshot");
            assert_eq!(taken.content_type.as_deref(), Some("image/png"));
            let (pixels, size) = decoded(&folder, "whole.png", &taken.bytes);
            assert_eq!(size, "640x480");
            if pixels == expected {
                return;
            }
        }
    };
    within("the picture", shown).await;

    let region = Region { x: 101, y: 57, width: 200, height: 33 };
    let taken = desktop.screenshot_region(region, ScreenshotOptions::new()).await.expect("a screenshot");
    let (pixels, size) = decoded(&folder, "region.png", &taken.bytes);
    assert_eq!(size, "200x33");
    assert!(pixels == picture(region), "the region differs");

    let half = desktop.screenshot(ScreenshotOptions::new().scale(0.5)).await.expect("a screenshot");
    assert_eq!(decoded(&folder, "half.png", &half.bytes).1, "320x240");
    let jpeg = ScreenshotOptions::new().format(ImageFormat::Jpeg).quality(50);
    let jpeg = desktop.screenshot(jpeg).await.expect("a screenshot");
    assert_eq!(jpeg.content_type.as_deref(), Some("image/jpeg"));
    assert!(jpeg.bytes.starts_with(&[0xff, 0xd8]), "not a JPEG");
    let error =
        desktop.screenshot(ScreenshotOptions::new().quality(0)).await.expect_err("an invalid quality");
    assert_eq!(DesktopProblem::of(&error).expect("a problem").kind, DesktopProblemKind::InvalidAction);
}

#[tokio::test]
async fn typed_text_and_pressed_keys_arrive_in_the_window() {
    let Some((server, desktop, folder)) = start().await else { return };
    assert_eq!(desktop.focused_window().await.expect("an answer"), None);
    let file = folder.path().join("typed");
    let script = format!("cat > '{}'; sleep 600", file.display());
    let xterm = LaunchApp::new("xterm").args(["-geometry", "60x10+20+20", "-e", "sh", "-c", &script]);
    let xterm = window(&desktop, xterm).await;
    let focused = desktop.focus_window(&xterm.id).await.expect("the window");
    assert!(focused.is_active, "{focused:?}");
    assert_eq!(
        desktop.focused_window().await.expect("an answer").map(|window| window.id),
        Some(xterm.id.clone())
    );
    within("typing", desktop.type_text("Hello, World! {x} 'y' 1+1\n")).await.expect("it is typed");
    within("typing", desktop.type_text_with("ab", Duration::from_millis(1))).await.expect("it is typed");
    desktop.press_key("c", KeyModifiers::none().shift()).await.expect("a key");
    desktop.key_down("shift").await.expect("a key");
    desktop.press_key("d", KeyModifiers::none()).await.expect("a key");
    desktop.key_up("shift").await.expect("a key");
    desktop.press_key("Return", KeyModifiers::none()).await.expect("a key");
    let arrived =
        || std::fs::read_to_string(&file).is_ok_and(|text| text == "Hello, World! {x} 'y' 1+1\nabCD\n");
    sdk_tests::eventually("what was typed", arrived).await;

    let owned = server.plane().processes().list_of(&ProcessOwner::Desktop).await.expect("processes");
    assert!(owned.iter().any(|process| process.command == "xterm"), "{owned:?}");
    let missing = desktop.launch(LaunchApp::new("no-such-application")).await.expect_err("no application");
    let problem = DesktopProblem::of(&missing).expect("a problem");
    assert_eq!(problem.kind, DesktopProblemKind::AppNotFound, "{problem:?}");
}

#[tokio::test]
async fn mouse_windows_and_clipboard_are_moved_and_read() {
    let Some((_server, desktop, _folder)) = start().await else { return };
    let moved = desktop.move_mouse(123, 45).await.expect("a position");
    assert_eq!((moved.x, moved.y), (123, 45));
    assert_eq!(desktop.mouse_position().await.expect("a position"), moved);
    let dragged = desktop.drag_mouse((10, 10), (200, 100), MouseButton::Left).await.expect("a position");
    assert_eq!((dragged.x, dragged.y), (200, 100));
    desktop.mouse_down(MouseButton::Right, Some((5, 6))).await.expect("a position");
    desktop.mouse_up(MouseButton::Right, None).await.expect("a position");
    desktop.press_key("Escape", KeyModifiers::none()).await.expect("the menu is closed");
    desktop.scroll((300, 300), 0, 2).await.expect("a position");
    let clicked = desktop.click_with(320, 240, MouseButton::Left, 2).await.expect("a position");
    assert_eq!((clicked.x, clicked.y), (320, 240));

    let xterm = window(&desktop, LaunchApp::new("xterm").args(["-geometry", "40x10+20+20"])).await;
    desktop.move_window(&xterm.id, 150, 120).await.expect("the window");
    desktop.resize_window(&xterm.id, 300, 200).await.expect("the window");
    let settled = async {
        loop {
            let windows = desktop.windows().await.expect("windows");
            let window = windows.into_iter().find(|window| window.id == xterm.id).expect("the window");
            // The window manager adds a frame, and the size of a terminal is a multiple of its character size.
            if window.x.abs_diff(150) <= 40
                && window.y.abs_diff(120) <= 60
                && window.width.abs_diff(300) <= 20
            {
                return;
            }
        }
    };
    within("the window's position", settled).await;
    let error = desktop.focus_window("1").await.expect_err("no window");
    assert!(DesktopProblem::of(&error).is_some(), "{error:?}");

    for (selection, text) in [(Selection::Clipboard, "copied: äö 日本"), (Selection::Primary, "selected")]
    {
        within("the clipboard", desktop.set_clipboard(text, selection.clone())).await.expect("it is set");
        assert_eq!(desktop.clipboard(selection).await.expect("a clipboard").text, text);
    }
    within("the clipboard", desktop.set_clipboard("both", Selection::Both)).await.expect("it is set");
    for selection in [Selection::Clipboard, Selection::Primary] {
        assert_eq!(desktop.clipboard(selection).await.expect("a clipboard").text, "both");
    }
    let stopped = within("stopping", desktop.stop()).await.expect("a status");
    assert_eq!(stopped.state, DesktopState::Inactive);
}

/// Returns whether the progress report of `ffmpeg` counts at least one frame: `frame=   12 fps=…`.
fn has_a_frame(report: &str) -> bool {
    let counts = report.split("frame=").skip(1).filter_map(|rest| rest.split_whitespace().next());
    counts.filter_map(|count| count.parse::<u32>().ok()).any(|count| count > 0)
}

#[tokio::test]
async fn a_recording_is_downloaded_as_a_stream_and_deleted() {
    let Some((server, desktop, _folder)) = start().await else { return };
    assert!(desktop.recordings().await.expect("recordings").is_empty());
    let error = desktop.stop_recording().await.expect_err("there is none");
    assert_eq!(DesktopProblem::of(&error).expect("a problem").kind, DesktopProblemKind::Conflict);
    if !is_installed("ffmpeg") {
        assert!(std::env::var_os("CI").is_none(), "ffmpeg is not installed");
        return say_not_run("recordings need ffmpeg");
    }
    let begun = desktop.start_recording_at(10).await.expect("a recording");
    assert_eq!(begun.status, RecordingStatus::Recording);
    let again = desktop.start_recording().await.expect_err("one at a time");
    assert_eq!(DesktopProblem::of(&again).expect("a problem").kind, DesktopProblemKind::Conflict);
    // The server stops the recorder with a signal. A recording without a frame would fail.
    let recorder = begun.process_id.expect("the process of the recorder");
    written_until(&server.plane().processes(), &recorder, has_a_frame).await;
    let ended = within("stopping", desktop.stop_recording()).await.expect("a recording");
    assert_eq!(ended.status, RecordingStatus::Completed);
    assert_eq!(desktop.recording(&ended.id).await.expect("a recording"), ended);
    let mut download = desktop.download_recording(&ended.id).await.expect("a download");
    let mut bytes = Vec::new();
    while let Some(piece) = within("a piece", download.next()).await {
        bytes.extend_from_slice(&piece.expect("a piece"));
    }
    assert_eq!(bytes.len() as u64, ended.bytes);
    assert_eq!(&bytes[4..8], b"ftyp", "it is an MP4 file");
    desktop.delete_recording(&ended.id).await.expect("it is deleted");
    assert!(desktop.recording(&ended.id).await.expect_err("it is gone").is_not_found());
    assert!(!desktop.stream_status().await.expect("a status").active);
    assert!(!desktop.stop_stream().await.expect("a status").active);
}
