//! The desktop of the server's machine: a virtual display with a window manager.
//!
//! ```text
//! calls       status, start, stop, screenshots, mouse, keyboard, windows, clipboard, applications
//! recordings  recordings and the live stream
//! request     types of requests
//! info        types of responses
//! problem     why the desktop rejected a call
//! ```

mod calls;
mod info;
mod problem;
mod recordings;
mod request;

pub use calls::Desktop;
pub use info::{
    Clipboard, DesktopFailure, DesktopProcess, DesktopState, DesktopStatus, DesktopWindow, DisplayInfo,
    Launched, MousePosition, Recording, RecordingStatus, Resolution, Screenshot, StreamStatus,
};
pub use problem::{DesktopProblem, DesktopProblemKind};
pub use request::{
    ImageFormat, KeyModifiers, LaunchApp, MouseButton, Region, ScreenshotOptions, Selection, StartDesktop,
};
