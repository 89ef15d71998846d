/* Take the frames of the browser's camera, cut to the model's size. */

const QUALITY = 0.9; // of the JPEG
const LONGEST_DELAY_MS = 10000; // a time of capture that lies further back is not believed

const REASONS = {
  NotAllowedError: "The browser may not use the camera: allow it for this page, and start again.",
  NotFoundError: "There is no camera. Connect one, or choose the server's source.",
  NotReadableError: "The camera cannot be read; another program may use it.",
};

export class Camera {
  /* canvas: where frames are drawn. onFrame: called with each new frame. onEnd: called when the camera goes away. */
  constructor(canvas, onFrame, onEnd) {
    Object.assign(this, { canvas, onFrame, onEnd, media: null, captured_ms: 0, isFresh: false, numFrames: 0 });
    this.video = document.createElement("video");
    this.video.muted = true;
    this.video.playsInline = true;
  }

  /* Ask for the camera. It throws an Error with a text for people. */
  async open(width, height) {
    if (!navigator.mediaDevices) {
      throw new Error("Browsers give the camera to pages at https:// and at localhost only. Open the page there, or choose the server's source.");
    }
    try {
      const video = { width: { ideal: Math.max(width, 640) }, height: { ideal: Math.max(height, 480) }, frameRate: { ideal: 60 } };
      this.media = await navigator.mediaDevices.getUserMedia({ video, audio: false });
    } catch (error) {
      throw new Error(REASONS[error.name] || `The camera cannot be opened: ${error.message || error.name}`);
    }
    this.numFrames = 0;
    this.media.getVideoTracks()[0].addEventListener("ended", () => this.onEnd());
    this.video.srcObject = this.media;
    await this.video.play();
    this.wait(this.media);
  }

  get isOpen() {
    return this.media !== null;
  }

  close() {
    if (this.media) for (const track of this.media.getTracks()) track.stop();
    this.media = null;
    this.isFresh = false;
    this.video.srcObject = null;
  }

  /* Wait for the next frame, as long as this camera is open. */
  wait(media) {
    const come = (now, facts) => {
      if (media !== this.media) return;
      const delay_ms = now - (facts && facts.captureTime);
      this.captured_ms = delay_ms >= 0 && delay_ms < LONGEST_DELAY_MS ? facts.captureTime : now;
      this.isFresh = true;
      this.numFrames += 1;
      this.onFrame();
      this.wait(media);
    };
    if (this.video.requestVideoFrameCallback) this.video.requestVideoFrameCallback(come);
    else requestAnimationFrame((now) => come(now, null));
  }

  /* Draw the newest frame, and return it as {captured_ms, jpeg}. The middle of the picture is kept. */
  async take() {
    this.isFresh = false;
    const captured_ms = this.captured_ms;
    const { width, height } = this.canvas;
    const scale = Math.max(width / this.video.videoWidth, height / this.video.videoHeight);
    const [w, h] = [width / scale, height / scale];
    const [x, y] = [(this.video.videoWidth - w) / 2, (this.video.videoHeight - h) / 2];
    this.canvas.getContext("2d").drawImage(this.video, x, y, w, h, 0, 0, width, height);
    const jpeg = await new Promise((resolve) => this.canvas.toBlob(resolve, "image/jpeg", QUALITY));
    return { captured_ms, jpeg };
  }
}
