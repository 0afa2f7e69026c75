//! Types of requests about the desktop.

use serde::Serialize;

use crate::control::route::Route;
use crate::convert::open_enum::open_enum;

/// Options for starting the desktop. The server has a default for each.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
#[must_use]
pub struct StartDesktop {
    /// The width of the display in pixels; 1440 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// The height of the display in pixels; 900 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<u32>,
    /// The dots per inch of the display; 96 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpi: Option<u32>,
    /// The number of the display; 99 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_num: Option<u32>,
    /// The directory for logs and recordings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<String>,
    /// The video codec of the live stream; `vp8` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_video_codec: Option<String>,
    /// The audio codec of the live stream; `opus` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_audio_codec: Option<String>,
    /// The frame rate of the live stream, from 1 to 60; 30 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_frame_rate: Option<u32>,
    /// The UDP ports of the live stream; `59050-59070` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webrtc_port_range: Option<String>,
    /// The default frame rate of recordings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording_fps: Option<u32>,
}

impl StartDesktop {
    /// Creates options with the server's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of the display in pixels.
    pub fn size(mut self, width: u32, height: u32) -> Self {
        (self.width, self.height) = (Some(width), Some(height));
        self
    }

    /// Sets the number of the display.
    pub fn display_num(mut self, number: u32) -> Self {
        self.display_num = Some(number);
        self
    }
}

open_enum! {
    /// The image format of a screenshot.
    pub enum ImageFormat {
        /// PNG, lossless.
        Png = "png",
        /// JPEG.
        Jpeg = "jpeg",
        /// WebP.
        Webp = "webp",
    }
}

/// Options of a screenshot. The default is a full-size PNG without the cursor.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct ScreenshotOptions {
    /// The image format; PNG by default.
    pub format: Option<ImageFormat>,
    /// The quality of JPEG and WebP, from 1 to 100; 85 by default.
    pub quality: Option<u8>,
    /// The scale relative to the display, from 0.1 to 1.0.
    pub scale: Option<f32>,
    /// Whether the screenshot includes the cursor.
    pub show_cursor: bool,
}

impl ScreenshotOptions {
    /// Creates options for a full-size PNG without the cursor.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the image format.
    pub fn format(mut self, format: ImageFormat) -> Self {
        self.format = Some(format);
        self
    }

    /// Sets the quality of JPEG and WebP, from 1 to 100.
    pub fn quality(mut self, quality: u8) -> Self {
        self.quality = Some(quality);
        self
    }

    /// Sets the scale relative to the display, from 0.1 to 1.0.
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Includes the cursor.
    pub fn show_cursor(mut self) -> Self {
        self.show_cursor = true;
        self
    }

    pub(super) fn query(&self, mut route: Route) -> Route {
        if let Some(format) = &self.format {
            route = route.query("format", format.as_str());
        }
        if let Some(quality) = self.quality {
            route = route.query("quality", &quality.to_string());
        }
        if let Some(scale) = self.scale {
            route = route.query("scale", &scale.to_string());
        }
        route.flag("showCursor", self.show_cursor)
    }
}

/// A part of the display, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// The left edge.
    pub x: u32,
    /// The upper edge.
    pub y: u32,
    /// The width.
    pub width: u32,
    /// The height.
    pub height: u32,
}

impl Region {
    pub(super) fn query(&self, route: Route) -> Route {
        let Self { x, y, width, height } = self;
        route
            .query("x", &x.to_string())
            .query("y", &y.to_string())
            .query("width", &width.to_string())
            .query("height", &height.to_string())
    }
}

/// A mouse button.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum MouseButton {
    /// The left button.
    #[default]
    Left,
    /// The middle button.
    Middle,
    /// The right button.
    Right,
}

/// Modifier keys held while another key is pressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[must_use]
pub struct KeyModifiers {
    /// The Control key.
    pub ctrl: bool,
    /// The Shift key.
    pub shift: bool,
    /// The Alt key.
    pub alt: bool,
    /// The Command key, also called Super or Windows.
    pub cmd: bool,
}

impl KeyModifiers {
    /// Creates a value without modifiers.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds Control.
    pub fn ctrl(mut self) -> Self {
        self.ctrl = true;
        self
    }

    /// Adds Shift.
    pub fn shift(mut self) -> Self {
        self.shift = true;
        self
    }

    /// Adds Alt.
    pub fn alt(mut self) -> Self {
        self.alt = true;
        self
    }

    /// Adds Command.
    pub fn cmd(mut self) -> Self {
        self.cmd = true;
        self
    }
}

open_enum! {
    /// A selection of the display.
    pub enum Selection {
        /// The clipboard of copy and paste.
        Clipboard = "clipboard",
        /// The text selected with the mouse.
        Primary = "primary",
        /// Both selections. Only for writing.
        Both = "both",
    }
}

/// An application to start on the desktop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[must_use]
pub struct LaunchApp {
    /// The program, looked up in the server's `PATH`.
    pub app: String,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// Whether to wait for the application's window, for at most five seconds.
    pub wait: bool,
}

impl LaunchApp {
    /// Creates a request for a program without arguments.
    pub fn new(app: impl Into<String>) -> Self {
        Self { app: app.into(), args: Vec::new(), wait: false }
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Waits for the application's window, for at most five seconds.
    pub fn wait(mut self) -> Self {
        self.wait = true;
        self
    }
}
