"""A combo box whose text is elided where it does not fit."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QHelpEvent, QPaintEvent
from PySide6.QtWidgets import QComboBox, QStyle, QStyleOptionComboBox, QStylePainter, QToolTip

from mosaic.gui.views.labels import elide_text


class ElidedComboBox(QComboBox):
    """With a style sheet, Qt would cut the text, even inside a number. A tool tip shows all of it."""

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.isEditable():
            super().paintEvent(event)
            return
        painter = QStylePainter(self)
        option = self._style_option()
        painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
        option.currentText = self.shown_text()
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip and not self.isEditable():
            text = self._full_text()
            lines = (text if self.shown_text() != text else "", self.toolTip())
            QToolTip.showText(event.globalPos(), "\n".join(filter(None, lines)), self)
            return True
        return super().event(event)

    def shown_text(self) -> str:
        option, style = self._style_option(), self.style()
        field = QStyle.SubControl.SC_ComboBoxEditField
        room = style.subControlRect(QStyle.ComplexControl.CC_ComboBox, option, field, self).width()
        if not self.itemIcon(self.currentIndex()).isNull():
            room -= self.iconSize().width() + 4  # the distance that styles keep
        return elide_text(self._full_text(), self.fontMetrics(), Qt.TextElideMode.ElideRight, room)

    def _full_text(self) -> str:
        return self.placeholderText() if self.currentIndex() < 0 else self.currentText()

    def _style_option(self) -> QStyleOptionComboBox:
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        return option
