//! Types that the server returns about its desktop.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::open_enum::open_enum;

open_enum! {
    /// The state of the desktop.
    pub enum DesktopState {
        /// The desktop is not running.
        Inactive = "inactive",
        /// Required programs are not installed.
        InstallRequired = "install_required",
        /// The desktop is starting.
        Starting = "starting",
        /// The desktop is running.
        Active = "active",
        /// The desktop is stopping.
        Stopping = "stopping",
        /// The desktop failed to start, or crashed.
        Failed = "failed",
    }
}

open_enum! {
    /// The state of a recording.
    pub enum RecordingStatus {
        /// The recording is running.
        Recording = "recording",
        /// The recording is complete.
        Completed = "completed",
        /// The recording failed.
        Failed = "failed",
    }
}

/// The state of the desktop, with details.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DesktopStatus {
    /// The state.
    pub state: DesktopState,
    /// The name of the display, such as `:99`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<String>,
    /// The size of the display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<Resolution>,
    /// When the desktop was started, as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// The last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<DesktopFailure>,
    /// Required programs that are not installed.
    #[serde(default)]
    pub missing_dependencies: Vec<String>,
    /// The command that installs the missing programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_command: Option<String>,
    /// The processes of the desktop.
    #[serde(default)]
    pub processes: Vec<DesktopProcess>,
    /// The path of the desktop's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_log_path: Option<String>,
    /// The open windows.
    #[serde(default)]
    pub windows: Vec<DesktopWindow>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The size of a display in pixels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Resolution {
    /// The width.
    pub width: u32,
    /// The height.
    pub height: u32,
    /// The dots per inch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dpi: Option<u32>,
}

/// A failure of the desktop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DesktopFailure {
    /// The kind of failure; see [`DesktopProblemKind`](super::DesktopProblemKind).
    pub code: String,
    /// The message.
    #[serde(default)]
    pub message: String,
}

/// A process of the desktop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DesktopProcess {
    /// The name of the process.
    pub name: String,
    /// The process id on the server's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Whether the process is running.
    pub running: bool,
    /// The path of the process's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_path: Option<String>,
}

/// A window of the desktop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DesktopWindow {
    /// The id of the window.
    pub id: String,
    /// The title of the window.
    #[serde(default)]
    pub title: String,
    /// The left edge of the window's contents, in pixels.
    pub x: i32,
    /// The upper edge of the window's contents, in pixels.
    pub y: i32,
    /// The width of the window's contents, in pixels.
    pub width: u32,
    /// The height of the window's contents, in pixels.
    pub height: u32,
    /// Whether the window has the focus.
    #[serde(default)]
    pub is_active: bool,
}

#[derive(Deserialize)]
pub(super) struct WindowList {
    pub(super) windows: Vec<DesktopWindow>,
}

/// The name and the size of the display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DisplayInfo {
    /// The name of the display, such as `:99`.
    pub display: String,
    /// The size of the display.
    pub resolution: Resolution,
}

/// The position of the mouse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MousePosition {
    /// The distance from the left edge, in pixels.
    pub x: i32,
    /// The distance from the upper edge, in pixels.
    pub y: i32,
    /// The screen that the mouse is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub screen: Option<i32>,
    /// The id of the window under the mouse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
}

/// The contents of a selection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Clipboard {
    /// The text; empty if there is none.
    pub text: String,
    /// The selection from which the text was read.
    #[serde(default)]
    pub selection: String,
}

/// An application that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Launched {
    /// The id of the application among the server's [processes](crate::control::processes::Processes).
    pub process_id: String,
    /// The process id on the server's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The id of the application's window, if the request waited for it and it appeared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_id: Option<String>,
}

/// A screenshot of the display.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Screenshot {
    /// The media type, such as `image/png`.
    pub content_type: Option<String>,
    /// The encoded image.
    pub bytes: Bytes,
}

/// A recording of the display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Recording {
    /// The id of the recording.
    pub id: String,
    /// The state of the recording.
    pub status: RecordingStatus,
    /// The id of the recorder among the server's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<String>,
    /// The name of the recording's file.
    #[serde(default)]
    pub file_name: String,
    /// The size in bytes; 0 while the recording is running.
    #[serde(default)]
    pub bytes: u64,
    /// When the recording was started, as RFC 3339 text.
    #[serde(default)]
    pub started_at: String,
    /// When the recording ended, as RFC 3339 text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct RecordingList {
    pub(super) recordings: Vec<Recording>,
}

/// The state of the live stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct StreamStatus {
    /// Whether the display is being streamed.
    pub active: bool,
    /// The id of the streamed window; `None` for the whole display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_id: Option<String>,
    /// The id of the streaming program among the server's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<String>,
}
