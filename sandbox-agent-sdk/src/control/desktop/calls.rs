//! The requests of the desktop.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::info::{
    Clipboard, DesktopStatus, DesktopWindow, DisplayInfo, Launched, MousePosition, Screenshot, WindowList,
};
use super::request::{
    KeyModifiers, LaunchApp, MouseButton, Region, ScreenshotOptions, Selection, StartDesktop,
};
use crate::Error;
use crate::control::http::{Call, Http};
use crate::control::route::Route;

/// How long a write to the clipboard may take before the clipboard is read back.
const CLIPBOARD_WITHIN: Duration = Duration::from_secs(2);

/// Controls the desktop of the server's machine. Cheap to clone; needs no connection.
///
/// Call [`start`](Self::start) first. Coordinates are pixels from the upper left corner.
///
/// # Errors
/// If the desktop rejects a call, the call returns [`Error::Http`].
/// [`DesktopProblem::of`](super::DesktopProblem::of) extracts the reason, for example: the desktop is not
/// running, programs are missing, the window does not exist.
///
/// ```no_run
/// # async fn example(server: sandbox_agent_sdk::control::ControlPlane) -> Result<(), Box<dyn std::error::Error>> {
/// use sandbox_agent_sdk::control::desktop::{LaunchApp, ScreenshotOptions, StartDesktop};
///
/// let desktop = server.desktop();
/// desktop.start(StartDesktop::new().size(1280, 800)).await?;
/// desktop.launch(LaunchApp::new("xterm").wait()).await?;
/// desktop.type_text("uname -a\n").await?;
/// std::fs::write("desktop.png", desktop.screenshot(ScreenshotOptions::new()).await?.bytes)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Desktop {
    pub(super) http: Http,
}

impl Desktop {
    pub(in crate::control) fn new(http: Http) -> Self {
        Self { http }
    }

    /// Returns the state of the desktop.
    pub fn status(&self) -> BoxFuture<'static, Result<DesktopStatus, Error>> {
        self.get("get desktop status", "/v1/desktop/status")
    }

    /// Starts the desktop. Does nothing if it is already running.
    pub fn start(&self, start: StartDesktop) -> BoxFuture<'static, Result<DesktopStatus, Error>> {
        self.post("start desktop", "/v1/desktop/start", &start)
    }

    /// Stops the desktop and all applications on it.
    pub fn stop(&self) -> BoxFuture<'static, Result<DesktopStatus, Error>> {
        self.act("stop desktop", "/v1/desktop/stop")
    }

    /// Returns the name and the size of the display.
    pub fn display_info(&self) -> BoxFuture<'static, Result<DisplayInfo, Error>> {
        self.get("get display info", "/v1/desktop/display/info")
    }

    /// Takes a screenshot of the whole display.
    pub fn screenshot(&self, options: ScreenshotOptions) -> BoxFuture<'static, Result<Screenshot, Error>> {
        self.picture(options.query(Route::new("/v1/desktop/screenshot")))
    }

    /// Takes a screenshot of a part of the display.
    pub fn screenshot_region(
        &self,
        region: Region,
        options: ScreenshotOptions,
    ) -> BoxFuture<'static, Result<Screenshot, Error>> {
        self.picture(options.query(region.query(Route::new("/v1/desktop/screenshot/region"))))
    }

    fn picture(&self, route: Route) -> BoxFuture<'static, Result<Screenshot, Error>> {
        let body =
            self.http.body(Ok(Call::new("take screenshot", Method::GET, route).accept("image/*, */*;q=0.5")));
        let limit = self.http.limits().screenshot;
        Box::pin(async move {
            let body = body.await?;
            let content_type = body.content_type().map(str::to_owned);
            Ok(Screenshot { content_type, bytes: body.collect(limit).await? })
        })
    }

    /// Returns the position of the mouse.
    pub fn mouse_position(&self) -> BoxFuture<'static, Result<MousePosition, Error>> {
        self.get("get mouse position", "/v1/desktop/mouse/position")
    }

    /// Moves the mouse.
    pub fn move_mouse(&self, x: i32, y: i32) -> BoxFuture<'static, Result<MousePosition, Error>> {
        self.post("move mouse", "/v1/desktop/mouse/move", &json!({ "x": x, "y": y }))
    }

    /// Moves the mouse and clicks the left button.
    pub fn click(&self, x: i32, y: i32) -> BoxFuture<'static, Result<MousePosition, Error>> {
        self.click_with(x, y, MouseButton::Left, 1)
    }

    /// Moves the mouse and clicks a button `clicks` times: 2 for a double click.
    pub fn click_with(
        &self,
        x: i32,
        y: i32,
        button: MouseButton,
        clicks: u32,
    ) -> BoxFuture<'static, Result<MousePosition, Error>> {
        let body = json!({ "x": x, "y": y, "button": button, "clickCount": clicks });
        self.post("click mouse", "/v1/desktop/mouse/click", &body)
    }

    /// Presses a mouse button, at the current position or at the given coordinates.
    pub fn mouse_down(
        &self,
        button: MouseButton,
        at: Option<(i32, i32)>,
    ) -> BoxFuture<'static, Result<MousePosition, Error>> {
        self.post("press mouse button", "/v1/desktop/mouse/down", &button_at(button, at))
    }

    /// Releases a mouse button, at the current position or at the given coordinates.
    pub fn mouse_up(
        &self,
        button: MouseButton,
        at: Option<(i32, i32)>,
    ) -> BoxFuture<'static, Result<MousePosition, Error>> {
        self.post("release mouse button", "/v1/desktop/mouse/up", &button_at(button, at))
    }

    /// Drags from one point to another with a mouse button.
    pub fn drag_mouse(
        &self,
        from: (i32, i32),
        to: (i32, i32),
        button: MouseButton,
    ) -> BoxFuture<'static, Result<MousePosition, Error>> {
        let body =
            json!({ "startX": from.0, "startY": from.1, "endX": to.0, "endY": to.1, "button": button });
        self.post("drag mouse", "/v1/desktop/mouse/drag", &body)
    }

    /// Moves the mouse and scrolls. Positive values scroll down and to the right.
    pub fn scroll(
        &self,
        at: (i32, i32),
        delta_x: i32,
        delta_y: i32,
    ) -> BoxFuture<'static, Result<MousePosition, Error>> {
        let body = json!({ "x": at.0, "y": at.1, "deltaX": delta_x, "deltaY": delta_y });
        self.post("scroll mouse", "/v1/desktop/mouse/scroll", &body)
    }

    /// Types text into the focused window.
    pub fn type_text(&self, text: impl AsRef<str>) -> BoxFuture<'static, Result<(), Error>> {
        self.type_text_with(text, Duration::from_millis(10))
    }

    /// Types text with a delay between two keys.
    pub fn type_text_with(
        &self,
        text: impl AsRef<str>,
        delay: Duration,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let text = text.as_ref();
        let keys = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let body = json!({ "text": text, "delayMs": delay_ms });
        // The server responds after it has pressed and released all keys.
        let limit = self.http.timeouts().response + delay.saturating_mul(keys).saturating_mul(2);
        let call = Call::new("type text", Method::POST, Route::new("/v1/desktop/keyboard/type"));
        self.http.done(call.response_timeout(Some(limit)).json(&body))
    }

    /// Presses and releases a key (`Return`, `a`, `F5`) or a combination (`ctrl+a`). Uses X key names.
    pub fn press_key(
        &self,
        key: impl AsRef<str>,
        modifiers: KeyModifiers,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let body = json!({ "key": key.as_ref(), "modifiers": modifiers });
        self.send("press key", "/v1/desktop/keyboard/press", &body)
    }

    /// Presses a key without releasing it.
    pub fn key_down(&self, key: impl AsRef<str>) -> BoxFuture<'static, Result<(), Error>> {
        self.send("hold key", "/v1/desktop/keyboard/down", &json!({ "key": key.as_ref() }))
    }

    /// Releases a key.
    pub fn key_up(&self, key: impl AsRef<str>) -> BoxFuture<'static, Result<(), Error>> {
        self.send("release key", "/v1/desktop/keyboard/up", &json!({ "key": key.as_ref() }))
    }

    /// Lists the windows.
    pub fn windows(&self) -> BoxFuture<'static, Result<Vec<DesktopWindow>, Error>> {
        let list = self.get::<WindowList>("list windows", "/v1/desktop/windows");
        list.map(|list| list.map(|list| list.windows)).boxed()
    }

    /// Returns the focused window, or `None` if no window has the focus.
    pub fn focused_window(&self) -> BoxFuture<'static, Result<Option<DesktopWindow>, Error>> {
        let window = self.get::<DesktopWindow>("get focused window", "/v1/desktop/windows/focused");
        window
            .map(|window| match window {
                Ok(window) => Ok(Some(window)),
                Err(error) if error.problem().is_some_and(|p| p.short_kind() == "no_focused_window") => {
                    Ok(None)
                }
                Err(error) => Err(error),
            })
            .boxed()
    }

    /// Focuses a window.
    pub fn focus_window(&self, id: &str) -> BoxFuture<'static, Result<DesktopWindow, Error>> {
        let route = window(id, "focus");
        self.http.value(route.map(|route| Call::new("focus window", Method::POST, route)))
    }

    /// Moves a window.
    pub fn move_window(&self, id: &str, x: i32, y: i32) -> BoxFuture<'static, Result<DesktopWindow, Error>> {
        let body = json!({ "x": x, "y": y });
        let route = window(id, "move");
        self.http.value(route.and_then(|route| Call::new("move window", Method::POST, route).json(&body)))
    }

    /// Resizes a window.
    pub fn resize_window(
        &self,
        id: &str,
        width: u32,
        height: u32,
    ) -> BoxFuture<'static, Result<DesktopWindow, Error>> {
        let body = json!({ "width": width, "height": height });
        let route = window(id, "resize");
        self.http.value(route.and_then(|route| Call::new("resize window", Method::POST, route).json(&body)))
    }

    /// Returns the text of a selection.
    pub fn clipboard(&self, selection: Selection) -> BoxFuture<'static, Result<Clipboard, Error>> {
        let route = Route::new("/v1/desktop/clipboard").query("selection", selection.as_str());
        self.http.value(Ok(Call::new("get clipboard", Method::GET, route).private()))
    }

    /// Sets the text of a selection.
    ///
    /// Released servers set the text immediately but respond only when another program replaces it. If no response
    /// arrives within two seconds, this method reads the selection back and succeeds if it contains the text.
    pub fn set_clipboard(
        &self,
        text: impl Into<String>,
        selection: Selection,
    ) -> BoxFuture<'static, Result<(), Error>> {
        let (desktop, text) = (self.clone(), text.into());
        Box::pin(async move {
            // A server that does not respond to the first write would never process the second.
            let selections = match selection {
                Selection::Both => vec![Selection::Clipboard, Selection::Primary],
                one => vec![one],
            };
            for selection in selections {
                desktop.set_selection(&text, selection).await?;
            }
            Ok(())
        })
    }

    async fn set_selection(&self, text: &str, selection: Selection) -> Result<(), Error> {
        let body = json!({ "text": text, "selection": selection });
        let call = Call::new("set clipboard", Method::POST, Route::new("/v1/desktop/clipboard"));
        match self.http.done(call.response_timeout(Some(CLIPBOARD_WITHIN)).json(&body)).await {
            Err(error) if error.is_timeout() => {
                if self.clipboard(selection).await?.text == text {
                    Ok(())
                } else {
                    Err(error)
                }
            }
            other => other,
        }
    }

    /// Starts an application on the desktop.
    pub fn launch(&self, app: LaunchApp) -> BoxFuture<'static, Result<Launched, Error>> {
        self.post("launch application", "/v1/desktop/launch", &app)
    }

    /// Opens a file or a URL with the default application of the server's machine.
    pub fn open(&self, target: impl AsRef<str>) -> BoxFuture<'static, Result<Launched, Error>> {
        self.post("open target", "/v1/desktop/open", &json!({ "target": target.as_ref() }))
    }

    pub(super) fn get<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        path: &'static str,
    ) -> BoxFuture<'static, Result<T, Error>> {
        self.http.value(Ok(Call::new(what, Method::GET, Route::new(path))))
    }

    pub(super) fn post<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        path: &'static str,
        body: &impl Serialize,
    ) -> BoxFuture<'static, Result<T, Error>> {
        self.http.value(Call::new(what, Method::POST, Route::new(path)).json(body))
    }

    /// Sends a POST without a body.
    pub(super) fn act<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &'static str,
        path: &'static str,
    ) -> BoxFuture<'static, Result<T, Error>> {
        self.http.value(Ok(Call::new(what, Method::POST, Route::new(path))))
    }

    /// Sends a POST whose response carries no value.
    fn send(
        &self,
        what: &'static str,
        path: &'static str,
        body: &Value,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.http.done(Call::new(what, Method::POST, Route::new(path)).json(body))
    }
}

fn window(id: &str, action: &str) -> Result<Route, Error> {
    Route::new("/v1/desktop/windows").segment(id)?.segment(action)
}

fn button_at(button: MouseButton, at: Option<(i32, i32)>) -> Value {
    match at {
        Some((x, y)) => json!({ "button": button, "x": x, "y": y }),
        None => json!({ "button": button }),
    }
}
