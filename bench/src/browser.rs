//! A headless browser, driven by the DevTools protocol over a pair of pipes.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout for an answer of the browser, and for a state of the page.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks at the page.
const POLL: Duration = Duration::from_millis(50);

/// A size of the screen.
#[derive(Clone, Copy, Debug)]
pub struct ScreenSize {
    /// In CSS pixels.
    pub width: u32,
    /// In CSS pixels; only the part of a page that a picture shows.
    pub height: u32,
    /// Whether it is a phone: touch, and twice the pixels.
    pub is_phone: bool,
    /// Whether its user prefers dark colours.
    pub is_dark: bool,
}

/// A running browser with one page. Killed when dropped.
pub struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    /// Errors of the page: exceptions, failed loads, violations of its policy.
    errors: Vec<String>,
    /// The addresses that the page has asked for.
    requests: Vec<String>,
}

impl Browser {
    /// Starts a program, Chromium or one with its options, with its profile in `profile`.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(program: &str, profile: &Path) -> Result<Self> {
        // The browser reads from descriptor 3 and writes to 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec 3<&0 4>&1 </dev/null >/dev/null 2>&1; exec \"$@\"", "sh", program])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update"])
            .args(["--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the browser")?;
        let input = child.stdin.take().context("the browser has no input")?;
        let output = child.stdout.take().context("the browser has no output")?;
        let (sender, messages) = channel();
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut bytes = Vec::new();
            while output.read_until(0, &mut bytes).is_ok_and(|read| read > 0) {
                bytes.pop();
                let message = serde_json::from_slice(&bytes).unwrap_or_default();
                if sender.send(message).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        let (errors, requests) = (Vec::new(), Vec::new());
        let mut browser =
            Self { child, input, messages, session: None, last_id: 0, errors, requests };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach)?;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// Calls a method of the protocol.
    ///
    /// # Errors
    /// If the browser refuses it, or does not answer in time.
    pub fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.last_id += 1;
        let id = self.last_id;
        let mut request = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&request)?;
        bytes.push(0);
        self.input.write_all(&bytes).context("the browser has ended")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = match self.messages.recv_timeout(left) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => bail!("no answer to {method} in {PATIENCE:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("the browser ended during {method}"),
            };
            if message["id"] == id {
                ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
                return Ok(message["result"].clone());
            }
            self.observe(&message);
        }
    }

    /// Records what the page does.
    fn observe(&mut self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.errors.push(parameters["exceptionDetails"].to_string());
            }
            Some("Runtime.consoleAPICalled") if parameters["type"] == "error" => {
                self.errors.push(parameters["args"].to_string());
            }
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                self.errors.push(parameters["entry"].to_string());
            }
            Some("Network.requestWillBeSent") => {
                let url = parameters["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            _ => {}
        }
    }

    /// The errors of the page since the last call.
    pub fn take_errors(&mut self) -> Vec<String> {
        std::mem::take(&mut self.errors)
    }

    /// The addresses that the page has asked for so far.
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// Opens an address.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let answer = self.call("Page.navigate", json!({"url": url}))?;
        ensure!(answer["errorText"].is_null(), "{url}: {}", answer["errorText"]);
        Ok(())
    }

    /// The value of an expression of JavaScript.
    ///
    /// # Errors
    /// If it throws.
    pub fn value(&mut self, expression: &str) -> Result<Value> {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", parameters)?;
        let thrown = &answer["exceptionDetails"];
        ensure!(thrown.is_null(), "{expression}: {thrown}");
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true. `what` names the state.
    ///
    /// # Errors
    /// If it is not in time; the message has the text of the page.
    pub fn wait(&mut self, what: &str, expression: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.value(expression)? != json!(true) {
            if Instant::now() >= deadline {
                let text = self.value("document.body.innerText")?;
                bail!("{what}: not within {PATIENCE:?}; errors {:?}; page: {text}", self.errors);
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Presses a key, such as `Tab` or `Enter`.
    pub fn press(&mut self, key: &str) -> Result<()> {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowRight" => 39,
            _ => 0,
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({
                "type": kind, "key": key, "code": key, "text": text,
                "windowsVirtualKeyCode": code,
            });
            self.call("Input.dispatchKeyEvent", event)?;
        }
        Ok(())
    }

    /// Sets the size and the colours of the screen.
    pub fn set_screen(&mut self, screen: ScreenSize) -> Result<()> {
        let ScreenSize { width, height, is_phone, is_dark } = screen;
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "mobile": is_phone,
                "deviceScaleFactor": if is_phone { 2 } else { 1 }}),
        )?;
        self.call("Emulation.setTouchEmulationEnabled", json!({"enabled": is_phone}))?;
        let scheme = if is_dark { "dark" } else { "light" };
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.call("Emulation.setEmulatedMedia", json!({"features": [feature]}))?;
        Ok(())
    }

    /// Saves a picture of the screen as PNG.
    pub fn save_picture(&mut self, path: &Path) -> Result<()> {
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}))?;
        let data = answer["data"].as_str().context("there is no picture")?;
        std::fs::write(path, decoded(data)?).with_context(|| format!("{}", path.display()))
    }

    /// The names of controls that a screen reader cannot name.
    pub fn unnamed_controls(&mut self) -> Result<Vec<String>> {
        const ROLES: [&str; 9] = [
            "button", "link", "combobox", "textbox", "slider", "checkbox", "radio", "image", "img",
        ];
        let tree = self.call("Accessibility.getFullAXTree", json!({}))?;
        let nodes = tree["nodes"].as_array().context("there is no accessibility tree")?;
        let is_unnamed = |node: &&Value| {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            let name = node["name"]["value"].as_str().unwrap_or_default();
            node["ignored"] != true && ROLES.contains(&role) && name.trim().is_empty()
        };
        Ok(nodes.iter().filter(is_unnamed).map(|node| node["role"].to_string()).collect())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It has ended otherwise.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Decodes base64.
fn decoded(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("not base64: {byte}"),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo")] {
            assert_eq!(decoded(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(decoded("+/8=").unwrap(), [0xfb, 0xff]);
        assert!(decoded("a b").is_err());
    }
}
